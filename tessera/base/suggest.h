// "Did you mean …": the valid name nearest to a misspelt one.
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

}  // namespace tessera
