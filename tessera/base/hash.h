// A small hash that is the same on every machine and in every version: for tags and seeds, never against tampering.
#pragma once

#include <cstdint>
#include <string_view>

namespace tessera {

inline constexpr uint64_t kFnvOffset = 0xcbf29ce484222325;

// FNV-1a, 64 bits (Fowler, Noll, Vo). `state`: where to go on from; another start gives another family of hashes.
constexpr uint64_t fnv1a(std::string_view text, uint64_t state = kFnvOffset) {
  for (const char c : text) state = (state ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return state;
}

}  // namespace tessera
