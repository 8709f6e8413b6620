// A causal language model in training, for bench/models and bench/parallel: the same step, on one rank and over many.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "tessera/comm/group.h"
#include "tessera/config/ds_config.h"
#include "tessera/engine/engine.h"
#include "tessera/models/model.h"

namespace tessera {

using CausalEngine = std::shared_ptr<ModelEngine<models::Network>>;

// AdamW without clipping, at stage 0.
inline CausalEngine causal_engine(const std::shared_ptr<models::Network>& network, const std::string& precision,
                                  int64_t rows, int64_t micro_batches, InitializeOptions options) {
  const nlohmann::json ds_config{{"train_micro_batch_size_per_gpu", rows / micro_batches},
                                 {"gradient_accumulation_steps", micro_batches},
                                 {"gradient_clipping", 0},
                                 {"bf16", {{"enabled", precision == "bf16"}}},
                                 {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 1e-4}}}}},
                                 {"tessera", {{"lazy_publish", true}}}};
  CausalEngine engine =
      initialize(network, config::parse_ds_config(ds_config, "bench", {.data_parallel_size = 1}), std::move(options));
  engine->train();
  return engine;
}

// ids (rows, length) int64
inline models::NamedTensors causal_batch(const at::Tensor& ids) {
  models::NamedTensors batch;
  batch.set("input_ids", ids);
  at::Tensor labels = ids.clone();
  labels.select(1, 0).fill_(-100);  // has nothing before it
  batch.set("labels", labels);
  return batch;
}

// What takes a step on these tokens, (rows, length) int64, and returns its loss. `sharers`: ranks that share each row,
// of whose gradients the engine takes the mean; null: the rows are this rank's.
inline std::function<double()> causal_trainer(const std::shared_ptr<models::Network>& network, const at::Tensor& ids,
                                              const std::string& precision, InitializeOptions options,
                                              const std::shared_ptr<comm::Group>& sharers = nullptr) {
  const int64_t rows = ids.size(0), length = ids.size(1);
  const CausalEngine engine = causal_engine(network, precision, rows, 1, std::move(options));
  return [engine, sharers, batch = causal_batch(ids), targets = rows * (length - 1)] {
    const at::Tensor sum =
        engine->call([](models::Network& net, const models::NamedTensors& in) { return net.loss_sum(in); }, batch);
    const at::Tensor loss = sum / targets;
    engine->backward(sharers ? loss * sharers->size() : loss);
    engine->step();
    const at::Tensor of_all = loss.detach().to(at::kDouble);
    if (sharers) sharers->start_all_reduce(of_all, 1, "loss").finish();
    return of_all.item<double>();
  };
}

}  // namespace tessera
