#include <ATen/ops/from_blob.h>

#include "tessera/base/error.h"
#include "tessera/train/task.h"

namespace tessera::train {

models::NamedTensors tensors_of(NetworkEngine& engine, const data::Batch& batch) {
  models::NamedTensors tensors;
  for (const auto& [name, array] : batch.arrays) {
    // What backward needs of the batch's own memory, the engine's caller keeps until then.
    auto* const values = const_cast<int64_t*>(array.values.data());
    tensors.set(name, at::from_blob(values, array.shape, at::kLong).to(engine.device()));
  }
  return tensors;
}

BatchLoss batch_loss(NetworkEngine& engine, const data::Batch& batch) {
  const at::Tensor sum =
      engine.call([](models::Network& network, const models::NamedTensors& inputs) { return network.loss_sum(inputs); },
                  tensors_of(engine, batch));
  return {.sum = sum, .targets = batch.target_tokens, .tokens = batch.tokens};
}

BatchLoss stage_of_batch(NetworkEngine& engine, const data::Batch& batch, const std::vector<int64_t>& bounds,
                         const engine::StagePass& pass) {
  const auto stage = static_cast<size_t>(pass.stage);
  const auto first = static_cast<size_t>(bounds[stage]), end = static_cast<size_t>(bounds[stage + 1]);
  const at::Tensor leaving =
      engine.call([&](models::Network& network, const at::Tensor& entering,
                      const models::NamedTensors& inputs) { return network.run_links(first, end, entering, inputs); },
                  pass.entering, tensors_of(engine, batch));
  if (stage + 2 < bounds.size()) return {.sum = leaving};
  return {.sum = leaving, .targets = batch.target_tokens, .tokens = batch.tokens};
}

BatchLoss Task::run_stage(const engine::StagePass& /*pass*/) { TESSERA_INVARIANT(!"the task has no pipeline"); }
BatchLoss Task::eval_stage(std::span<const size_t> /*samples*/, const engine::StagePass& /*pass*/) {
  TESSERA_INVARIANT(!"the task has no pipeline");
}

}  // namespace tessera::train
