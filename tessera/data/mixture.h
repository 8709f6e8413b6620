// Parts of the data in given proportions, as a mixture of web text, books and code is trained on.
//
//   Mixture mixture(/*part_ends=*/{800, 1000}, /*weights=*/{1, 1}, seed);   // 800 samples and 200, half of each
//   mixture.size()   // 400: an epoch ends where the part that runs out first has been seen once
//
// A part's samples come in an order drawn by the seed, each once before any comes again; the next epoch goes on where
// the last one ended. What is sample i of an epoch follows from (seed, epoch, i) alone, so a run that is resumed goes
// on with the same ones. Immutable; safe to use from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "tessera/data/loader.h"

namespace tessera::data {

class Mixture {
 public:
  // `part_ends`: samples up to the end of each part, none of which is empty. `weights`: one for each, above 0; only
  // their ratios count. ErrorKind::kConfig where an epoch would have no sample of a part.
  Mixture(std::span<const size_t> part_ends, std::span<const double> weights, uint64_t seed);

  size_t size() const { return parts_.back().mixed_end; }

  // Of all parts, the sample that is number i of the epoch.
  size_t sample(size_t i, int64_t epoch) const;

  // Of an epoch, those of each part.
  std::vector<size_t> samples_of_parts() const;

 private:
  struct Part {
    size_t begin = 0, size = 0;             // among all samples
    size_t mixed_begin = 0, mixed_end = 0;  // among those of an epoch
  };
  std::vector<Part> parts_;
  uint64_t seed_;
};

// Where `index` comes in an order of 0 … size - 1 that is drawn by (seed, stream): a Feistel network over the next even
// number of bits, applied until the value is below size (Black and Rogaway 2002, "Ciphers with arbitrary finite
// domains"). Needs no memory.
size_t place_in_drawn_order(size_t index, size_t size, uint64_t seed, uint64_t stream);

// The samples of `all` by other numbers, `size` of them.
template <class Batch>
Samples<Batch> renumbered(const Samples<Batch>& all, size_t size,
                          const std::function<size_t(size_t i, int64_t epoch)>& sample_of) {
  const auto numbers = [sample_of](std::span<const size_t> rows, int64_t epoch) {
    std::vector<size_t> found;
    for (const size_t row : rows) found.push_back(sample_of(row, epoch));
    return found;
  };
  Samples<Batch> some{.size = size, .collate = [=, collate = all.collate](std::span<const size_t> rows, int64_t epoch) {
                        return collate(numbers(rows, epoch), epoch);
                      }};
  if (all.count_targets) {
    some.count_targets = [=, count = all.count_targets](std::span<const size_t> rows, int64_t epoch) {
      return count(numbers(rows, epoch), epoch);
    };
  }
  return some;
}

}  // namespace tessera::data
