// Stochastic gradient descent as torch.optim.SGD has it:
//   g <- grad + decay w                     (to maximize: -grad + decay w)
//   b <- momentum b + (1 - dampening) g     (b <- g at the first step)
//   w <- w - lr b                           Nesterov: w <- w - lr (g + momentum b)
// State: "momentum_buffer" (b); none without momentum. Runs on ATen's fused kernel.
#pragma once

#include "tessera/optim/optimizer.h"

namespace tessera::optim {

struct SgdOptions {
  bool has_momentum = false;
  double dampening = 0;
  bool nesterov = false;
  bool maximize = false;
};

class Sgd : public Optimizer {
 public:
  explicit Sgd(const SgdOptions& options) : options_(options) {}

  std::vector<std::string> state_names() const override;
  void update(std::span<ParamShard> shards, const UpdateInput& input) const override;
  bool elementwise() const override { return true; }

 private:
  SgdOptions options_;
};

}  // namespace tessera::optim
