// "Did you mean …": the valid name nearest to a misspelt one, and the error that says so.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "tessera/base/error.h"

namespace tessera {

// The candidate with the smallest edit distance (Damerau-Levenshtein: insert, delete, replace, swap neighbours),
// ignoring case; nothing when even the best differs in more than about a third of its letters. The first of equals
// wins.
std::optional<std::string> nearest_name(std::string_view given, std::span<const std::string> candidates);

struct UnknownName {
  std::string kind;  // of what there is none of this name: "optimizer"
  std::string name;
  std::string where;                         // the place of the name in the user's input, …
  ErrorKind error_kind = ErrorKind::kUsage;  // … which decides this
};

// The error, with the nearest of those known, and all of them.
[[noreturn]] void throw_unknown_name(const UnknownName& unknown, std::span<const std::string> known);

}  // namespace tessera
