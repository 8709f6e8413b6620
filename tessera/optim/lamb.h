// LAMB (You et al. 2020, algorithm 2), in the variant of DeepSpeed's kernel: the moments' bias correction goes into the
// step size, and the trust ratio is clamped.
//   m <- b1 m + (1 - b1) g          v <- b2 v + (1 - b2) g^2
//   u  = m / (sqrt(v) + eps) + decay w                       eps_inside_sqrt: m / sqrt(v + eps)
//   r  = clamp(|w| / |u|, min_coeff, max_coeff); 1 where a norm is 0; the norms are those of the whole parameter
//   w <- w - lr sqrt(1 - b2^t) / (1 - b1^t) r u               without correction: lr r u
// States: "exp_avg" (m), "exp_avg_sq" (v).
#pragma once

#include "tessera/optim/optimizer.h"

namespace tessera::optim {

struct LambOptions {
  bool bias_correction = true;
  bool eps_inside_sqrt = false;
  double min_coeff = 0.01;
  double max_coeff = 10;
};

class Lamb : public Optimizer {
 public:
  explicit Lamb(const LambOptions& options) : options_(options) {}

  std::vector<std::string> state_names() const override { return {"exp_avg", "exp_avg_sq"}; }
  void update(std::span<ParamShard> shards, const UpdateInput& input) const override;

 private:
  LambOptions options_;
};

}  // namespace tessera::optim
