#include "tessera/data/sampler.h"

#include <limits>
#include <numeric>
#include <random>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::data {

namespace {

// torch.randperm on the CPU: PyTorch's generator is MT19937 seeded with the low 32 bits, and its shuffle (aten's
// randperm_cpu) exchanges each place with a random one of those from it on. Longer permutations draw 64 bits a place.
std::vector<size_t> random_permutation(size_t count, uint64_t seed) {
  std::mt19937 generator(static_cast<uint32_t>(seed));
  const bool small = count < std::numeric_limits<uint32_t>::max() / 20;
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), size_t{0});
  for (size_t i = 0; i + 1 < count; ++i) {
    uint64_t word = generator();
    if (!small) word = (word << 32) | generator();
    std::swap(order[i], order[i + word % (count - i)]);
  }
  return order;
}

}  // namespace

size_t epoch_length(const SamplerOptions& options) {
  TESSERA_INVARIANT(options.world_size > 0);
  const auto ranks = static_cast<size_t>(options.world_size);
  const size_t whole = options.dataset_size / ranks * ranks;
  return options.drop_last || whole == options.dataset_size ? whole : whole + ranks;
}

std::vector<size_t> epoch_order(const SamplerOptions& options, int64_t epoch) {
  std::vector<size_t> order(options.dataset_size);
  if (options.shuffle) {
    order = random_permutation(options.dataset_size, options.seed + static_cast<uint64_t>(epoch));
  } else {
    std::iota(order.begin(), order.end(), size_t{0});
  }
  const size_t length = epoch_length(options);
  order.reserve(length);
  for (size_t i = 0; order.size() < length; ++i) order.push_back(order[i]);
  order.resize(length);
  return order;
}

std::vector<size_t> rank_order(const SamplerOptions& options, int64_t epoch) {
  TESSERA_INVARIANT(options.rank >= 0 && options.rank < options.world_size);
  const std::vector<size_t> order = epoch_order(options, epoch);
  std::vector<size_t> own;
  own.reserve(order.size() / static_cast<size_t>(options.world_size));
  for (size_t i = static_cast<size_t>(options.rank); i < order.size(); i += static_cast<size_t>(options.world_size)) {
    own.push_back(order[i]);
  }
  return own;
}

}  // namespace tessera::data
