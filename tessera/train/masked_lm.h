// Masked-language-model training of BERT: what of it is particular to the task. The trainer does the rest.
#pragma once

#include <memory>
#include <optional>

#include "tessera/data/batch.h"
#include "tessera/data/collator.h"
#include "tessera/data/dataset.h"
#include "tessera/engine/engine.h"
#include "tessera/models/bert.h"
#include "tessera/models/pretrained_weights.h"

namespace tessera::train {

// What a step or an evaluation saw, all ranks together.
struct LossSum {
  double loss = 0;  // sum over target tokens
  int64_t target_tokens = 0;
  int64_t tokens = 0;

  double mean() const { return target_tokens == 0 ? 0 : loss / static_cast<double>(target_tokens); }
};

using BertEngine = ModelEngine<models::BertForMaskedLM>;

// The sum of the loss over the batch's targets, in fp32, ready for backward.
at::Tensor masked_loss_sum(BertEngine& engine, const data::Batch& batch);

// The mean loss over all targets of the dataset, dropout off, its masks those of epoch 0: the same however many ranks
// share it. Collective.
LossSum evaluate(BertEngine& engine, const data::TokenizedDataset& dataset, const data::MlmCollator& collator,
                 int64_t micro_batch);

// Adds up over ranks, in rank order. Collective.
LossSum sum_over_ranks(comm::Communicator& world, const LossSum& mine);

}  // namespace tessera::train
