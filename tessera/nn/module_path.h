// Building module trees whose parameter names are Hugging Face's, without a class for each dot in them.
//
//   query_ = nn::add(*this, "attention.self.query", std::make_shared<nn::Linear>(hidden, hidden));
//
// makes the plain modules `attention` and `self` where they are missing, so that the weight is listed as
// "attention.self.query.weight".
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <string>

namespace tessera::nn {

// The module that will hold the last part of `path` (made if missing), and that last part.
std::pair<torch::nn::Module*, std::string> parent_of(torch::nn::Module& root, const std::string& path);

// Where the module stands below `root`, which has it.
std::string path_of(const torch::nn::Module& root, const torch::nn::Module& module);

template <class M>
std::shared_ptr<M> add(torch::nn::Module& root, const std::string& path, std::shared_ptr<M> module) {
  const auto [parent, name] = parent_of(root, path);
  return parent->register_module(name, std::move(module));
}

}  // namespace tessera::nn
