// Philox4x32-10, a counter-based generator: random words as a pure function of a counter and a key.
//
// Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2, 3. SC 2011, section 3.3; names are the paper's.
#pragma once

#include <array>
#include <cstdint>

namespace tessera::data {

constexpr std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57} * counter[2];
    const auto high = [](uint64_t product) { return static_cast<uint32_t>(product >> 32); };
    const auto low = [](uint64_t product) { return static_cast<uint32_t>(product); };
    counter = {high(product1) ^ counter[1] ^ key[0], low(product1), high(product0) ^ counter[3] ^ key[1],
               low(product0)};
    key[0] += 0x9E3779B9;  // Weyl sequence: the golden ratio
    key[1] += 0xBB67AE85;  // and the square root of 3 less 1
  }
  return counter;
}

}  // namespace tessera::data
