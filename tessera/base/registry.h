// Tables of named parts (optimizers, tokenizers, models, …): read one, list it, look a name up in it.
//
//   static constexpr Registry<MakeReader>::Entry kEntries[] = {{"jsonl", "one JSON object a line", make_jsonl}, …};
//   Registry<MakeReader> readers() { return {"reader", kEntries}; }
//
// An OpenRegistry is one that a program completes with parts of its own: at its start, on one thread, before anything
// is looked up. Names compare without regard to case.
#pragma once

#include <strings.h>

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/suggest.h"

namespace tessera {

// A value that borrows the table; tables are static.
template <class Maker>
class Registry {
 public:
  struct Entry {
    const char* name;
    const char* summary;  // one line, for --list
    Maker make;
  };

  constexpr Registry(const char* kind, std::span<const Entry> entries) : kind_(kind), entries_(entries) {}

  std::span<const Entry> entries() const { return entries_; }

  std::vector<std::string> names() const {
    std::vector<std::string> result;
    for (const Entry& entry : entries_) result.emplace_back(entry.name);
    return result;
  }

  // Null where there is none of this name.
  const Entry* lookup(const std::string& name) const {
    const auto found = std::find_if(entries_.begin(), entries_.end(),
                                    [&](const Entry& entry) { return strcasecmp(entry.name, name.c_str()) == 0; });
    return found == entries_.end() ? nullptr : &*found;
  }

  // Where there is none, an error with the nearest name and the whole list. `where` is the place of the name in the
  // user's input, which decides the error's kind.
  const Entry& find(const std::string& name, const std::string& where, ErrorKind error_kind = ErrorKind::kUsage) const {
    if (const Entry* const found = lookup(name)) return *found;
    throw_unknown_name({.kind = kind_, .name = name, .where = where, .error_kind = error_kind}, names());
  }

 private:
  const char* kind_;
  std::span<const Entry> entries_;
};

template <class Maker>
class OpenRegistry {
 public:
  using Entry = typename Registry<Maker>::Entry;

  OpenRegistry(const char* kind, std::vector<Entry> built_in) : kind_(kind), entries_(std::move(built_in)) {}

  // ErrorKind::kUsage where the name is taken.
  void add(Entry entry) {
    if (table().lookup(entry.name) != nullptr) {
      throw Error(ErrorKind::kUsage, {std::string("there is a ") + kind_ + " '" + entry.name + "' already",
                                      std::string("adding a ") + kind_, "use another name"});
    }
    entries_.push_back(std::move(entry));
  }

  // Of what there is now: good until the next add().
  Registry<Maker> table() const { return {kind_, entries_}; }

 private:
  const char* kind_;
  std::vector<Entry> entries_;
};

}  // namespace tessera
