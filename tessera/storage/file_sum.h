// Checksums of a file: XXH3-64 of each block of kSumBlockBytes, so that any range of it can be checked by reading
// little more than the range.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tessera::storage {

inline constexpr uint64_t kSumBlockBytes = 4U << 20;

struct FileSum {
  uint64_t bytes = 0;
  std::vector<uint64_t> blocks;  // the last one may be of a shorter block
};

uint64_t hash_of(const void* data, size_t bytes);

// 16 hexadecimal digits a block.
std::string to_text(const std::vector<uint64_t>& blocks);

// Nothing where the text is not of that form.
std::vector<uint64_t> blocks_of(const std::string& text);

}  // namespace tessera::storage
