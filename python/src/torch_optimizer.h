// A torch.optim.Optimizer of the client's as one of ours: its own step() runs, in Python, on this rank's flat fp32
// parts of the parameters.
#pragma once

#include <pybind11/pybind11.h>

#include <string>
#include <vector>

#include "tessera/optim/optimizer.h"

namespace tessera::python {

class TorchOptimizer : public optim::Optimizer {
 public:
  // `step` takes a list of (name, group, first, weight, grad): the parameter's name, its group's number, the index of
  // the part's first element in the flattened parameter, the weights to update in place, and their gradient. A part
  // that is the whole parameter has the parameter's shape, any other is flat. Weights of one part are the same storage
  // in each call.
  explicit TorchOptimizer(pybind11::function step) : step_(std::move(step)) {}
  ~TorchOptimizer() override;

  std::vector<std::string> state_names() const override { return {}; }
  bool takes_whole_model() const override { return true; }
  void update(std::span<optim::ParamShard> shards, const optim::UpdateInput& input) const override;

 private:
  pybind11::function step_;
};

}  // namespace tessera::python
