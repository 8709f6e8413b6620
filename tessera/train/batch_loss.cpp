#include <ATen/ops/from_blob.h>

#include "tessera/models/stages.h"
#include "tessera/train/task.h"

namespace tessera::train {

models::NamedTensors tensors_of(NetworkEngine& engine, const data::Batch& batch) {
  return tensors_of(engine.device(), batch);
}

models::NamedTensors tensors_of(at::Device device, const data::Batch& batch) {
  models::NamedTensors tensors;
  for (const auto& [name, array] : batch.arrays) {
    // What backward needs of the batch's own memory, the engine's caller keeps until then.
    auto* const values = const_cast<int64_t*>(array.values.data());
    tensors.set(name, at::from_blob(values, array.shape, at::kLong).to(device));
  }
  return tensors;
}

BatchLoss batch_loss(NetworkEngine& engine, const data::Batch& batch) {
  return batch_loss(engine, batch, /*stages=*/nullptr, {}, /*tallies=*/nullptr);
}

BatchLoss batch_loss(NetworkEngine& engine, const data::Batch& batch, const models::StageBounds* stages,
                     const engine::StagePass& pass, TalliesOf tallies) {
  const models::NamedTensors tensors = tensors_of(engine, batch);
  std::vector<at::Tensor> outputs = engine.call(
      [&](models::Network& network, const std::vector<at::Tensor>& entering, const models::NamedTensors& inputs) {
        return stages == nullptr ? network.outputs(inputs)
                                 : models::run_stage(network, *stages, pass.stage, entering, inputs);
      },
      pass.entering, tensors);
  const bool is_last = stages == nullptr || pass.stage + 1 == static_cast<int>(stages->rank_of_stage.size());
  if (!is_last) return {.sum = {}, .leaving = std::move(outputs)};
  return {.sum = outputs.front(),
          .targets = batch.target_tokens,
          .tokens = batch.tokens,
          .tallies = tallies == nullptr ? std::vector<double>() : tallies(outputs, tensors)};
}

}  // namespace tessera::train
