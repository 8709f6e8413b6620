#include "tessera/train/masked_lm.h"

#include <ATen/ops/from_blob.h>

#include <vector>

namespace tessera::train {
namespace {

// On the CPU a tensor over the batch's own memory, which outlives it here.
at::Tensor wrap(const data::Batch& batch, const std::vector<int64_t>& values, at::Device device) {
  return at::from_blob(const_cast<int64_t*>(values.data()), {batch.rows, batch.length}, at::kLong).to(device);
}

}  // namespace

BatchLoss masked_lm_loss(BertEngine& engine, const data::Batch& batch) {
  const auto on_device = [&](const std::vector<int64_t>& values) { return wrap(batch, values, engine.device()); };
  const models::BertInput input{.input_ids = on_device(batch.input_ids),
                                .attention_mask = on_device(batch.attention_mask),
                                .token_type_ids = on_device(batch.token_type_ids)};
  const at::Tensor labels = on_device(batch.labels);
  const at::Tensor sum = engine.call([](models::BertForMaskedLM& model, const models::BertInput& in,
                                        const at::Tensor& targets) { return model.masked_loss_sum(in, targets); },
                                     input, labels);
  return {.sum = sum, .targets = batch.target_tokens, .tokens = batch.tokens};
}

}  // namespace tessera::train
