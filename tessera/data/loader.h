// Batches of one rank, one optimizer step at a time, kept ready by a thread of its own. What a sample is, and how some
// of them become a batch, is the caller's:
//
//   data::Loader<MyBatch> loader({.size = texts.size(), .collate = [&](samples, epoch) { return my_batch(samples); }},
//                                {.micro_batch = 4, .accumulation = 2, .world_size = world->size(), .rank =
//                                world->rank()});
//   data::StepBatches<MyBatch> step = loader.next();
//
//   epoch's global order (sampler.h)   [ step 0: T samples | step 1: T samples | … | last step: what is left ]
//   T = micro_batch * accumulation * world_size
//
// Within a step rank r takes the positions that are r modulo world_size and cuts them into micro batches. So the
// samples of a full step do not depend on how T is split. The last step of an epoch may have fewer and smaller micro
// batches, equally many of equal rows on every rank; drop_last leaves it out. (Padding the epoch to a multiple of
// world_size may repeat up to world_size - 1 samples in it.)
//
// Steps follow each other for ever: the last of an epoch is followed by the first of the next. The place in that
// sequence is (epoch, step_in_epoch) alone, so a seek there equals a run up to there.
//
// What the functions use must outlive the loader; they are called on its thread. One thread at a time may call it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace tessera::data {

// Numbered samples, and how some of them become a batch: what a loader loads and an evaluation reads.
template <class Batch>
struct Samples {
  size_t size = 0;  // samples that there are; they have the numbers from 0

  // The batch whose row i is samples[i].
  std::function<Batch(std::span<const size_t> samples, int64_t epoch)> collate;

  // What the loss of these samples is a mean over, e.g. the tokens to be predicted. Null: each sample counts as one.
  std::function<int64_t(std::span<const size_t> samples, int64_t epoch)> count_targets = nullptr;
};

struct LoaderOptions {
  int64_t micro_batch = 1;   // rows of one forward pass on one rank
  int64_t accumulation = 1;  // micro batches of a step
  int64_t world_size = 1;
  int64_t rank = 0;
  uint64_t seed = 42;  // of the order
  bool shuffle = true;
  bool drop_last = false;
  int64_t steps_ahead = 4;  // steps that the thread keeps ready
};

// One line, of what has to be the same on every rank.
std::string facts_of(const LoaderOptions& options);

// ErrorKind::kData where drop_last leaves no step.
int64_t steps_in_epoch(size_t samples, const LoaderOptions& options);

// Which step it is, and what it counts.
struct StepPlace {
  int64_t epoch = 0;
  int64_t step_in_epoch = 0;
  int64_t samples = 0;        // of the whole global batch, all ranks
  int64_t target_tokens = 0;  // of the whole global batch, all ranks: Samples::count_targets
};

template <class Batch>
struct StepBatches : StepPlace {
  std::vector<Batch> micro_batches;  // this rank's
};

// The loader without the type of its batches.
class UntypedLoader {
 public:
  using Batches = std::vector<std::shared_ptr<void>>;

  // ErrorKind::kConfig when a size is below 1 or the rank is outside the world; ErrorKind::kData when drop_last leaves
  // no step in an epoch.
  UntypedLoader(Samples<std::shared_ptr<void>> samples, const LoaderOptions& options);
  ~UntypedLoader();  // stops the thread after at most the one batch that it is building
  UntypedLoader(const UntypedLoader&) = delete;
  UntypedLoader& operator=(const UntypedLoader&) = delete;

  int64_t steps_per_epoch() const;

  // The next call of next() returns this step. A step_in_epoch of steps_per_epoch() means the start of the next epoch;
  // ErrorKind::kData beyond it.
  void seek(int64_t epoch, int64_t step_in_epoch);

  // Waits until the step is ready. Throws what the thread threw.
  std::pair<StepPlace, Batches> next();

 private:
  class Worker;
  std::unique_ptr<Worker> worker_;
};

template <class Batch>
class Loader {
 public:
  // As UntypedLoader's.
  Loader(const Samples<Batch>& samples, const LoaderOptions& options) : loader_(untyped(samples), options) {}

  int64_t steps_per_epoch() const { return loader_.steps_per_epoch(); }
  void seek(int64_t epoch, int64_t step_in_epoch) { loader_.seek(epoch, step_in_epoch); }

  StepBatches<Batch> next() {
    auto [place, batches] = loader_.next();
    StepBatches<Batch> step{place, {}};
    for (const auto& batch : batches) step.micro_batches.push_back(std::move(*static_cast<Batch*>(batch.get())));
    return step;
  }

 private:
  static Samples<std::shared_ptr<void>> untyped(const Samples<Batch>& samples) {
    return {
        .size = samples.size,
        .collate = [collate = samples.collate](std::span<const size_t> rows, int64_t epoch) -> std::shared_ptr<void> {
          return std::make_shared<Batch>(collate(rows, epoch));
        },
        .count_targets = samples.count_targets};
  }

  UntypedLoader loader_;
};

}  // namespace tessera::data
