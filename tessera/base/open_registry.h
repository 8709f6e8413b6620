// A table of named parts (registry.h) that a program completes with parts of its own: at its start, on one thread,
// before anything is looked up.
//
//   models::models().add({"toy", "a model of one matrix", toy_model()});
//
// Names compare without regard to case.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/registry.h"

namespace tessera {

template <class Maker>
class OpenRegistry {
 public:
  using Entry = typename Registry<Maker>::Entry;

  OpenRegistry(const char* kind, std::vector<Entry> built_in) : kind_(kind), entries_(std::move(built_in)) {}

  // ErrorKind::kUsage where the name is taken. References to entries are good until the next add().
  void add(Entry entry) {
    if (lookup(entry.name) != nullptr) {
      throw Error(ErrorKind::kUsage,
                  {std::string("there is a ") + kind_ + " '" + entry.name + "' already", "add()", "use another name"});
    }
    entries_.push_back(std::move(entry));
  }

  std::vector<std::string> names() const { return table().names(); }

  // Null where there is none of this name.
  const Entry* lookup(const std::string& name) const {
    for (const Entry& entry : entries_) {
      if (strcasecmp(entry.name, name.c_str()) == 0) return &entry;
    }
    return nullptr;
  }

  // Where there is none, an error with the nearest name and the whole list. `where` is the place of the name in the
  // user's input, which decides the kind.
  const Entry& find(const std::string& name, const std::string& where, ErrorKind kind) const {
    try {
      return table().find(name, where);
    } catch (const Error& error) {
      throw Error(kind, error.report());
    }
  }

 private:
  Registry<Maker> table() const { return {kind_, entries_}; }

  const char* kind_;
  std::vector<Entry> entries_;
};

}  // namespace tessera
