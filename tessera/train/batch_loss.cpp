#include <ATen/ops/from_blob.h>

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

}  // namespace tessera::train
