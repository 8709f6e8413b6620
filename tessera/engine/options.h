// What a program gives beside the configuration when it makes an engine, runs a backward, or loads a checkpoint.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/comm/mesh.h"
#include "tessera/layout/param_spec.h"
#include "tessera/optim/optimizer.h"

namespace tessera {

struct InitializeOptions {
  std::shared_ptr<comm::Group> world;  // null: init_distributed()

  // Where ranks differ in more than their data: replicas of sharded state (dp_replicate), or parts of the model (any
  // axis that is not one of data's). Its world is the run's, whatever `world` says. Null: all ranks are data parallel.
  std::shared_ptr<comm::Mesh> mesh = {};

  // Where ranks hold parts of parameters: completes what a parameter is globally, its shape and over which axes of the
  // mesh which dimension is sharded. Given its name, and what the model's layers say of it; called for each. Null: that
  // is all.
  std::function<void(layout::ParamSpec& spec)> specify = {};

  // Where the model trains: its parameters and buffers are moved there. Nothing: where its first parameter is.
  std::optional<at::Device> device = {};

  // Writes initial values of declared parameters (nn::declared_parameter), of their global shape. Must be given when
  // the model has such; other parameters start with what they hold on rank 0.
  std::function<void(const std::string& name, at::Tensor value)> fill;

  // True for parameters that weight decay leaves alone (biases and norms, usually). Null: it applies to all.
  std::function<bool(const std::string& name)> no_decay;

  // An optimizer of your own instead of the one that the configuration names, and its hyperparameters.
  std::shared_ptr<const optim::Optimizer> optimizer;
  optim::ParamGroup param_group = {};

  // Parameter groups of your own, for either optimizer, and which of them a parameter belongs to. A parameter without
  // one is not trained. Empty: one group with decay and one without.
  std::vector<optim::ParamGroup> param_groups = {};
  std::function<std::optional<size_t>(const std::string& name)> group_of;
};

struct BackwardOptions {
  bool divides_by_accumulation = true;  // the loss by gradient_accumulation_steps, as DeepSpeed does
  bool retain_graph = false;

  // The gradients of linear layers' weights come later: Engine::backward_weights() ends this backward.
  bool puts_off_weights = false;
};

struct LoadedCheckpoint {
  std::string path;
  nlohmann::json client_state;
  checkpoint::ClientTensors tensors = {};
};

namespace engine {

// Of a model whose layers are spread over a pipeline (pipeline_run.h): one stage's forward of one micro batch.
struct StagePass {
  int stage = 0;
  int micro_batch = 0;
  std::vector<at::Tensor> entering = {};  // what the stage before made; nothing for the first
};

}  // namespace engine
}  // namespace tessera
