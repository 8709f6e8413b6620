// A constant table of named parts (optimizers, tokenizers, readers, …): read it, list it, look a name up in it.
//
//   static constexpr Registry<MakeReader>::Entry kEntries[] = {{"jsonl", "one JSON object a line", make_jsonl}, …};
//   Registry<MakeReader> readers() { return {"reader", kEntries}; }
//
// find() of a name that is not there throws ErrorKind::kUsage with the nearest name and the whole list. Names compare
// without regard to case. A value that borrows the table; tables are static.
#pragma once

#include <strings.h>

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/suggest.h"

namespace tessera {

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

  // `where` is the place of the name in the user's input.
  const Entry& find(const std::string& name, const std::string& where) const {
    const auto found = std::find_if(entries_.begin(), entries_.end(),
                                    [&](const Entry& entry) { return strcasecmp(entry.name, name.c_str()) == 0; });
    if (found != entries_.end()) return *found;
    throw_unknown_name(kind_, name, where, names());
  }

 private:
  const char* kind_;
  std::span<const Entry> entries_;
};

}  // namespace tessera
