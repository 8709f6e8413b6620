// Adam (Kingma & Ba 2015, algorithm 1) and AdamW (Loshchilov & Hutter 2019, algorithm 2, with the schedule's factor in
// lr):
//   g <- grad + decay w                     (L2 decay only)
//   m <- b1 m + (1 - b1) g          v <- b2 v + (1 - b2) g^2
//   w <- w - lr decay w                     (decoupled decay only)
//   w <- w - lr mhat / (sqrt(vhat) + eps)   mhat = m / (1 - b1^t), vhat = v / (1 - b2^t); without correction m and v
// AMSGrad (Reddi et al. 2018) has the largest v so far in v's place, as torch.optim.Adam does.
// States: "exp_avg" (m), "exp_avg_sq" (v), for AMSGrad "max_exp_avg_sq". Runs at memory speed: on LibTorch's fused
// operators where all is fp32, which AMSGrad always is, else on adam_kernel.h.
#pragma once

#include "tessera/optim/optimizer.h"

namespace tessera::optim {

struct AdamOptions {
  bool decoupled_decay = true;  // AdamW; false: L2 decay inside the gradient
  bool bias_correction = true;
  bool amsgrad = false;
};

class Adam : public Optimizer {
 public:
  explicit Adam(const AdamOptions& options) : options_(options) {}

  std::vector<std::string> state_names() const override;
  void update(std::span<ParamShard> shards, const UpdateInput& input) const override;
  bool elementwise() const override { return true; }
  bool takes_any_dtype() const override { return !options_.amsgrad; }

 private:
  bool fits_fused(const ParamShard& shard) const;
  void update_fused(std::span<ParamShard* const> shards, const ParamGroup& group, double grad_divisor) const;

  AdamOptions options_;
};

}  // namespace tessera::optim
