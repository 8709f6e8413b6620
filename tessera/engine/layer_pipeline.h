// Trains a model that is a list of layers, a torch::nn::Sequential, over the stages of a pipeline: each rank keeps the
// layers of its own stages.
//
//   const auto mesh = std::make_shared<comm::Mesh>(world, layout::MeshShape({{"pp", 2}, {"dp_shard", 2}}));
//   torch::nn::Sequential layers(Words(…), Block(…), Block(…), Head(…));
//   LayerPipeline pipeline(layers, "ds_config.json", {.mesh = mesh});
//   for (…) {
//     loss = pipeline.train_batch([&](int micro_batch) { return inputs[micro_batch]; },
//                                 [&](const at::Tensor& y, int micro_batch) { return loss_of(y, labels[micro_batch]);
//                                 });
//   }
//   pipeline.engine().save_checkpoint("checkpoints");
//
// A layer takes a tensor and gives one, on the engine's device; micro batches may differ in shape. At ZeRO stage 3 each
// layer is a module that announces its forward (nn/unit_module.h). Parameters keep the names that they have among all
// layers, so a checkpoint goes on over any pipeline. Collective; one thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/engine/engine.h"

namespace tessera {

struct LayerPipelineOptions {
  std::string schedule = "1f1b";  // gpipe, interleaved, zb1p, dualpipev: docs/parallelism.md
  int stages_per_rank = 0;        // 0: as many as the schedule wants

  // Stage s has the layers from bounds[s] up to bounds[s + 1]. Empty: the stage with most parameters has as few of them
  // as can be.
  std::vector<int64_t> bounds = {};
};

class LayerPipeline {
 public:
  // Every rank brings all the layers, with the same values. The mesh has an axis "pp". ErrorKind::kUsage without a
  // mesh, for bounds that are not those of the schedule and the layers, for fewer layers than stages, and for a
  // parameter of two layers that are on different ranks; ErrorKind::kConfig for a schedule that there is not, or that
  // cannot have gradient_accumulation_steps micro batches.
  LayerPipeline(const torch::nn::Sequential& layers, const Configuration& config, InitializeOptions options,
                LayerPipelineOptions pipeline = {});
  ~LayerPipeline();

  // What goes into the first layer; asked of the ranks that have it.
  using Inputs = std::function<at::Tensor(int micro_batch)>;
  // The loss, a scalar, of what the last layer gave; asked of the ranks that have that.
  using Loss = std::function<at::Tensor(const at::Tensor& output, int micro_batch)>;

  // A step of gradient_accumulation_steps micro batches, the optimizer's too. The mean of the losses, of all
  // data-parallel ranks, on every rank.
  double train_batch(const Inputs& inputs, const Loss& loss);

  // The losses of so many micro batches alone. 0: as many as a step has.
  double eval_batch(const Inputs& inputs, const Loss& loss, int micro_batches = 0);

  // Steps, checkpoints, counters: of this rank's layers.
  Engine& engine();

  const std::vector<int64_t>& bounds() const;

 private:
  class Stages;
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera
