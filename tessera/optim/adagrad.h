// Adagrad (Duchi et al. 2011), as torch.optim.Adagrad and DeepSpeed have it:
//   g <- grad + decay w                     (to maximize: -grad + decay w)
//   s <- s + g^2
//   w <- w - lr / (1 + lr_decay (t - 1)) g / (sqrt(s) + eps)
// State: "sum" (s). Runs on ATen's fused kernel.
#pragma once

#include "tessera/optim/optimizer.h"

namespace tessera::optim {

struct AdagradOptions {
  double lr_decay = 0;
  bool maximize = false;
};

class Adagrad : public Optimizer {
 public:
  explicit Adagrad(const AdagradOptions& options) : options_(options) {}

  std::vector<std::string> state_names() const override { return {"sum"}; }
  void update(std::span<ParamShard> shards, const UpdateInput& input) const override;
  bool elementwise() const override { return true; }

 private:
  AdagradOptions options_;
};

}  // namespace tessera::optim
