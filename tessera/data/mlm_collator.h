// Samples to a masked-language-model batch (BERT, Devlin et al. 2018, section 3.1): each ordinary token is a target
// with `probability`; of the targets 80 % become [MASK], 10 % a random id of the whole vocabulary, 10 % stay as they
// are. Special tokens and padding are never targets.
//
// The arrays are (rows, length): "input_ids"; "attention_mask", 1 for a token and 0 for padding; "token_type_ids", 0
// throughout; "labels", the token to be found, kNoTarget where there is nothing to find.
//
// Which tokens are targets and what replaces them follows from (seed, epoch, sample index, position) alone, so the same
// sample looks the same in whatever batch and on whatever rank it comes; there is no state to save. A sample whose
// draws choose no token has no target.
//
// Borrows the dataset, which must outlive the collator. Immutable; safe to use from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tessera/data/collator.h"
#include "tessera/data/dataset.h"
#include "tessera/data/tokenizer.h"

namespace tessera::data {

struct MlmOptions {
  double probability = 0.15;
  int64_t max_length = 512;       // the width of a batch when pad_to_max_length; no sample may be longer
  bool pad_to_max_length = true;  // false: pad to the longest sample of the batch
  uint64_t seed = 42;
};

class MlmCollator final : public Collator {
 public:
  // ErrorKind::kConfig when the probability is not in [0, 1] or a sample of the dataset is longer than max_length;
  // ErrorKind::kData when the tokenizer has no mask or padding token. It is used only during the call.
  MlmCollator(const TokenizedDataset& dataset, const Tokenizer& tokenizer, const MlmOptions& options);

  size_t size() const override { return dataset_.size(); }
  Batch collate(std::span<const size_t> samples, int64_t epoch) const override;
  int64_t count_targets(std::span<const size_t> samples, int64_t epoch) const override;

 private:
  // What one position of a sample becomes.
  struct Draw {
    bool target;
    int64_t input;
  };
  Draw draw(size_t sample, int64_t position, int32_t token, int64_t epoch) const;

  const TokenizedDataset& dataset_;
  MlmOptions options_;
  int64_t mask_;
  int64_t pad_;
  int64_t vocab_size_;
  std::vector<bool> maskable_;  // (vocab_size), false for special tokens
};

}  // namespace tessera::data
