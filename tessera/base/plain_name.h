// Names that files give of other files.
#pragma once

#include <cstddef>
#include <string_view>

namespace tessera {

inline constexpr size_t kLongestName = 255;  // bytes that file systems take

// Whether a name stays in the folder that it is put after: not empty, ".", ".." or with a slash, nor too long.
inline bool is_plain_name(std::string_view name) {
  return !name.empty() && name.size() <= kLongestName && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\0", 2)) == name.npos;
}

}  // namespace tessera
