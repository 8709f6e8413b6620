// Batches of one rank, one optimizer step at a time, kept ready by a thread of its own.
//
//   epoch's global order (sampler.h)   [ step 0: T samples | step 1: T samples | … | last step: what is left ]
//   T = micro_batch * accumulation * world_size
//
// Within a step rank r takes the positions that are r modulo world_size and cuts them into micro batches. So the
// samples of a full step, and the masks on them, do not depend on how T is split. The last step of an epoch may have
// fewer and smaller micro batches, equally many of equal rows on every rank; drop_last leaves it out. (Padding the
// epoch to a multiple of world_size may repeat up to world_size - 1 samples in it.)
//
// Steps follow each other for ever: the last of an epoch is followed by the first of the next. The place in that
// sequence is (epoch, step_in_epoch) alone, so a seek there equals a run up to there.
//
// The dataset and the collator must outlive the loader. One thread at a time may call it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tessera/data/batch.h"
#include "tessera/data/collator.h"
#include "tessera/data/dataset.h"

namespace tessera::data {

struct LoaderOptions {
  int64_t micro_batch = 1;   // rows of one forward pass on one rank
  int64_t accumulation = 1;  // micro batches of a step
  int64_t world_size = 1;
  int64_t rank = 0;
  uint64_t seed = 42;  // of the order; the masks have their own in MlmOptions
  bool shuffle = true;
  bool drop_last = false;
  int64_t steps_ahead = 4;  // steps that the thread keeps ready
};

struct StepBatches {
  int64_t epoch = 0;
  int64_t step_in_epoch = 0;
  std::vector<Batch> micro_batches;  // this rank's
  int64_t samples = 0;               // of the whole global batch, all ranks
  int64_t target_tokens = 0;         // of the whole global batch, all ranks
};

class Loader {
 public:
  // ErrorKind::kConfig when a size is below 1 or the rank is outside the world; ErrorKind::kData when drop_last leaves
  // no step in an epoch.
  Loader(const TokenizedDataset& dataset, const MlmCollator& collator, const LoaderOptions& options);
  ~Loader();  // stops the thread after at most the one batch that it is building
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  int64_t steps_per_epoch() const;

  // The next call of next() returns this step. A step_in_epoch of steps_per_epoch() means the start of the next epoch;
  // ErrorKind::kData beyond it.
  void seek(int64_t epoch, int64_t step_in_epoch);

  // Waits until the step is ready. Throws what the thread threw.
  StepBatches next();

 private:
  class Worker;
  std::unique_ptr<Worker> worker_;
};

}  // namespace tessera::data
