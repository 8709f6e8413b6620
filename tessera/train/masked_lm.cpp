#include "tessera/train/masked_lm.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <vector>

namespace tessera::train {
namespace {

// On the CPU a tensor over the batch's own memory, which outlives it here.
at::Tensor wrap(const data::Batch& batch, const std::vector<int64_t>& values, at::Device device) {
  return at::from_blob(const_cast<int64_t*>(values.data()), {batch.rows, batch.length}, at::kLong).to(device);
}

}  // namespace

at::Tensor masked_loss_sum(BertEngine& engine, const data::Batch& batch) {
  const auto on_device = [&](const std::vector<int64_t>& values) { return wrap(batch, values, engine.device()); };
  const models::BertInput input{.input_ids = on_device(batch.input_ids),
                                .attention_mask = on_device(batch.attention_mask),
                                .token_type_ids = on_device(batch.token_type_ids)};
  const at::Tensor labels = on_device(batch.labels);
  return engine.call([](models::BertForMaskedLM& model, const models::BertInput& in,
                        const at::Tensor& targets) { return model.masked_loss_sum(in, targets); },
                     input, labels);
}

LossSum evaluate(BertEngine& engine, const data::TokenizedDataset& dataset, const data::MlmCollator& collator,
                 int64_t micro_batch) {
  const at::NoGradGuard no_grad;
  comm::Communicator& world = engine.world();
  std::vector<size_t> own;
  for (size_t i = world.rank(); i < dataset.size(); i += world.size()) own.push_back(i);
  // Stage 3 gathers in each forward, so every rank runs as many: one that has no samples left runs some again,
  // uncounted.
  const auto per_rank = static_cast<int64_t>((dataset.size() + world.size() - 1) / world.size());
  LossSum sum;
  engine.eval();
  for (int64_t first = 0; first < per_rank; first += micro_batch) {
    const auto count = static_cast<int64_t>(own.size());
    const bool counted = first < count;
    const std::span<const size_t> samples =
        counted ? std::span(own).subspan(first, std::min(micro_batch, count - first)) : std::span(own).first(1);
    if (samples.empty()) continue;  // fewer samples than ranks is refused before training
    const data::Batch batch = collator.collate(samples, /*epoch=*/0);
    const double loss = masked_loss_sum(engine, batch).item<double>();
    if (!counted) continue;
    sum.loss += loss;
    sum.target_tokens += batch.target_tokens;
    sum.tokens += batch.tokens;
  }
  engine.train();
  return sum_over_ranks(world, sum);
}

LossSum sum_over_ranks(comm::Communicator& world, const LossSum& mine) {
  at::Tensor own = at::empty({3}, at::kDouble);
  auto* const values = own.mutable_data_ptr<double>();
  values[0] = mine.loss;
  values[1] = static_cast<double>(mine.target_tokens);
  values[2] = static_cast<double>(mine.tokens);
  world.start_all_reduce(own, 1, "loss").finish();
  return {values[0], static_cast<int64_t>(values[1]), static_cast<int64_t>(values[2])};
}

}  // namespace tessera::train
