// Runs whose checkpoints the tests save, load and compare.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <vector>

#include "tessera/config/ds_config.h"
#include "tessera/engine/engine.h"
#include "tests/engine/toy_models.h"

namespace tessera::test {

inline config::DsConfig config_of(int stage, int world_size) {
  const nlohmann::json json = {{"train_batch_size", 12},
                               {"train_micro_batch_size_per_gpu", 12 / world_size},
                               {"zero_optimization", {{"stage", stage}, {"stage3_max_live_parameters", 0}}},
                               {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 0.01}, {"weight_decay", 0.1}}}}}};
  return config::parse_ds_config(json, "the test", {.data_parallel_size = world_size});
}

// The same twelve rows whatever the number of ranks.
inline ToyInput share_of(int step, const comm::Group& world) {
  const at::Tensor all = at::cos(at::arange(12 * kWidth, at::kFloat) * 0.3 + step).view({12, kWidth});
  const int64_t rows = 12 / world.size();
  return {.x = all.narrow(0, world.rank() * rows, rows)};
}

// Returns the loss of each step, the mean over ranks.
template <class Model>
std::vector<double> take_steps(ModelEngine<Model>& engine, int count) {
  std::vector<double> losses;
  for (int i = 0; i < count; ++i) {
    const ToyInput input = share_of(static_cast<int>(engine.global_steps()), engine.world());
    const at::Tensor loss = engine.call([](Model& m, const ToyInput& in) { return m.loss(in); }, input);
    engine.backward(loss);
    engine.step();
    at::Tensor mean = loss.detach().to(at::kDouble).reshape({1}).clone();
    engine.world().start_all_reduce(mean, 1.0 / engine.world().size(), "loss").finish();
    losses.push_back(mean.item<double>());
  }
  return losses;
}

template <class Model>
std::vector<at::Tensor> weights_of(ModelEngine<Model>& engine) {
  const Gathered whole(engine);
  std::vector<at::Tensor> weights;
  for (const auto& item : engine.module().named_parameters()) weights.push_back(item.value().detach().clone());
  return weights;
}

}  // namespace tessera::test
