#include "tessera/data/mixture.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/data/philox.h"

namespace tessera::data {

Mixture::Mixture(std::span<const size_t> part_ends, std::span<const double> weights, uint64_t seed) : seed_(seed) {
  TESSERA_INVARIANT(!part_ends.empty() && part_ends.size() == weights.size());
  size_t begin = 0;
  for (const size_t end : part_ends) {
    TESSERA_INVARIANT(end > begin);
    parts_.push_back({.begin = begin, .size = end - begin});
    begin = end;
  }
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  double samples = INFINITY;  // of an epoch: as many as the part allows that runs out first
  for (size_t i = 0; i < parts_.size(); ++i) {
    TESSERA_INVARIANT(weights[i] > 0);
    samples = std::min(samples, static_cast<double>(parts_[i].size) * sum / weights[i]);
  }
  size_t mixed = 0;
  for (size_t i = 0; i < parts_.size(); ++i) {
    constexpr double kRounding = 1e-9;  // a part that is seen whole must not lose its last sample
    const auto share = static_cast<size_t>(std::floor(samples * weights[i] / sum * (1 + kRounding)));
    if (share == 0) {
      throw Error(
          ErrorKind::kConfig,
          {fmt::format("the weight {} of the entry {} of data.train gives it less than one sample of an epoch's "
                       "{:.0f}",
                       weights[i], i + 1, samples),
           "data.weights", "raise it, or leave the entry out"});
    }
    parts_[i].mixed_begin = mixed;
    parts_[i].mixed_end = mixed += std::min(share, parts_[i].size);
  }
}

size_t Mixture::sample(size_t i, int64_t epoch) const {
  const auto part = std::upper_bound(parts_.begin(), parts_.end(), i,
                                     [](size_t value, const Part& each) { return value < each.mixed_end; });
  TESSERA_INVARIANT(part != parts_.end());
  const size_t each = part->mixed_end - part->mixed_begin;
  const size_t number = static_cast<size_t>(epoch) * each + (i - part->mixed_begin);
  const uint64_t pass = number / part->size, number_of_part = static_cast<uint64_t>(part - parts_.begin());
  return part->begin + place_in_drawn_order(number % part->size, part->size, seed_, (pass << 16) + number_of_part);
}

std::vector<size_t> Mixture::samples_of_parts() const {
  std::vector<size_t> samples;
  for (const Part& part : parts_) samples.push_back(part.mixed_end - part.mixed_begin);
  return samples;
}

size_t place_in_drawn_order(size_t index, size_t size, uint64_t seed, uint64_t stream) {
  constexpr uint32_t kRounds = 6;
  const int half = (std::bit_width(size | 3) + 1) / 2;
  const uint64_t mask = (uint64_t{1} << half) - 1;
  const auto mixed = [&](uint64_t right, uint32_t round) {
    const auto words = philox4x32(
        {static_cast<uint32_t>(right), round, static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)},
        {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
    return (uint64_t{words[1]} << 32 | words[0]) & mask;
  };
  do {
    uint64_t left = index >> half, right = index & mask;
    for (uint32_t round = 0; round < kRounds; ++round) {
      left ^= mixed(right, round);
      std::swap(left, right);
    }
    index = left << half | right;
  } while (index >= size);
  return index;
}

}  // namespace tessera::data
