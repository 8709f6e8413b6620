// What a loader loads (loader.h) and an evaluation reads: numbered samples, and how some of them become a batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

namespace tessera::data {

template <class Batch>
struct Samples {
  size_t size = 0;  // samples that there are; they have the numbers from 0

  // The batch whose row i is samples[i].
  std::function<Batch(std::span<const size_t> samples, int64_t epoch)> collate;

  // What the loss of these samples is a mean over, e.g. the tokens to be predicted. Null: each sample counts as one.
  std::function<int64_t(std::span<const size_t> samples, int64_t epoch)> count_targets = nullptr;
};

}  // namespace tessera::data
