// Masked-language-model training of BERT: what of it is particular to the task. The trainer does the rest.
#pragma once

#include "tessera/data/batch.h"
#include "tessera/engine/engine.h"
#include "tessera/models/bert.h"
#include "tessera/train/task.h"

namespace tessera::train {

using BertEngine = ModelEngine<models::BertForMaskedLM>;

// The loss over the batch's targets, in fp32.
BatchLoss masked_lm_loss(BertEngine& engine, const data::Batch& batch);

}  // namespace tessera::train
