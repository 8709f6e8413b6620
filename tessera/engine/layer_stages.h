// A model that is a list of layers, a torch::nn::Sequential, over the stages of a pipeline: each rank keeps the layers
// of its own stages.
//
//   torch::nn::Sequential layers(Words(…), Block(…), Block(…), Head(…));
//   const pipeline::Schedule schedule = pipeline::make_schedule("1f1b", {.ranks = 2, .micro_batches = 8});
//   engine::LayerStages stages(layers, *mesh, schedule);
//   auto engine = tessera::initialize(stages.own(), "ds_config.json", {.mesh = mesh, .specify = stages.specify()});
//   engine::PipelineRun run(*engine, *mesh, schedule.name);
//   run.train(8, [&](const engine::StagePass& pass) -> std::vector<at::Tensor> {
//     const at::Tensor x = stages.run(pass, inputs[pass.micro_batch]);
//     return {run.is_last(pass.stage) ? loss_of(x, labels[pass.micro_batch]) : x};
//   });
//   engine->step();
//
// A layer takes a tensor and gives one. At ZeRO stage 3 each is a module that announces its forward
// (nn/unit_module.h). Not collective; one thread.
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tessera/comm/mesh.h"
#include "tessera/engine/options.h"
#include "tessera/layout/param_spec.h"
#include "tessera/pipeline/schedule.h"

namespace tessera::engine {

class LayerStages {
 public:
  // Every rank brings all the layers, with the same values. Stage s has those from bounds[s] up to bounds[s + 1];
  // without bounds, the stage with most parameters has as few of them as can be. ErrorKind::kUsage for bounds that are
  // not those of the schedule and the layers, for fewer layers than stages, and for a parameter of two layers that are
  // on different ranks.
  LayerStages(const torch::nn::Sequential& layers, comm::Mesh& mesh, const pipeline::Schedule& schedule,
              std::vector<int64_t> bounds = {});

  // This rank's layers, by the names that they have among all: the model of an engine.
  const std::shared_ptr<torch::nn::Module>& own() const { return own_; }

  // Tells of a parameter which ranks have it: InitializeOptions::specify.
  std::function<void(layout::ParamSpec& spec)> specify() const;

  // A stage's layers, one after another: the first stage's on `input`, any other's on what entered.
  at::Tensor run(const StagePass& pass, const at::Tensor& input) const;

  const std::vector<int64_t>& bounds() const { return bounds_; }

 private:
  void require_own_parameters(const torch::nn::Sequential& layers) const;
  int rank_of_layer(int64_t layer) const;

  std::vector<int64_t> bounds_;
  std::vector<int> rank_of_stage_;
  std::map<int64_t, torch::nn::AnyModule> layers_;  // this rank's
  std::shared_ptr<torch::nn::Module> own_;
};

}  // namespace tessera::engine
