// A JSON text that holds its own checksum: `"xxh3": "…"`, sixteen hexadecimal digits of XXH3-64 over the text with
// zeros in their place. The first such key is the text's own; those of files come after it.
#pragma once

#include <string>

namespace tessera::checkpoint {

inline constexpr const char* kNoSum = "0000000000000000";

// The text, whose sum is still kNoSum, with its sum.
std::string with_own_sum(std::string text);

bool has_own_sum(std::string text);

}  // namespace tessera::checkpoint
