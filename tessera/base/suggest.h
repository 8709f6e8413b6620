// "Did you mean …": the valid name nearest to a misspelt one, and the error that says so.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace tessera {

// The candidate with the smallest edit distance (Damerau-Levenshtein: insert, delete, replace, swap neighbours),
// ignoring case; nothing when even the best differs in more than about a third of its letters. The first of equals
// wins.
std::optional<std::string> nearest_name(std::string_view given, std::span<const std::string> candidates);

// ErrorKind::kUsage: there is no `kind` of this name. `where` is the place of the name in the user's input.
[[noreturn]] void throw_unknown_name(std::string_view kind, const std::string& name, const std::string& where,
                                     std::span<const std::string> known);

}  // namespace tessera
