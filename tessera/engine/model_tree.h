// A model as the engine sees it, whatever it is made of: its parameters by the modules that announce when their forward
// begins and ends, and its buffers. A C++ model becomes one here; the Python door makes its own.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <vector>

#include "tessera/nn/unit_module.h"
#include "tessera/zero/sharded_model.h"

namespace tessera::engine {

struct ModelTree {
  std::vector<zero::ModuleParams> modules;  // number 0 is the root, with all that no other module announces
  std::vector<at::Tensor> buffers;
  std::vector<std::string> facts;  // of the model, beyond its parameters, that have to be the same on every rank
  bool placeholders_as_deepspeed = false;  // see zero/policy.h; Python's modules
};

struct AnnouncedTree {
  ModelTree tree;
  std::vector<nn::UnitModuleBase*> announcing;  // by module number; null for the root. Borrowed from the model
};

AnnouncedTree tree_of(torch::nn::Module& model);

// ErrorKind::kUsage where there is none.
std::shared_ptr<torch::nn::Module> required_model(std::shared_ptr<torch::nn::Module> model);

}  // namespace tessera::engine
