#include "tessera/storage/file_sum.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <charconv>

namespace tessera::storage {
namespace {

constexpr size_t kDigits = 16;

}  // namespace

uint64_t hash_of(const void* data, size_t bytes) { return XXH3_64bits(data, bytes); }

std::string to_text(const std::vector<uint64_t>& blocks) {
  std::string text;
  for (const uint64_t block : blocks) text += fmt::format("{:016x}", block);
  return text;
}

std::vector<uint64_t> blocks_of(const std::string& text) {
  if (text.size() % kDigits != 0) return {};
  std::vector<uint64_t> blocks;
  for (size_t at = 0; at < text.size(); at += kDigits) {
    uint64_t block = 0;
    const char* const end = text.data() + at + kDigits;
    const auto parsed = std::from_chars(text.data() + at, end, block, /*base=*/16);
    if (parsed.ec != std::errc() || parsed.ptr != end) return {};
    blocks.push_back(block);
  }
  return blocks;
}

}  // namespace tessera::storage
