// 1-bit LAMB (Li et al. 2021, algorithm 1): LAMB without bias correction for freeze_step steps, while a running mean c
// of each parameter's trust ratio is kept; from then on the second moment v and c stay as they are, the ranks average
// momentum by signs, and a second moment f of the gradients that the momentum implies scales c.
//   warm-up      as lamb.h without bias correction; r: the clamped trust ratio
//                c <- coeff_beta c + (1 - coeff_beta) r, where r is not 1
//   compressed   m' = mean by signs of (b1 m + (1 - b1) g)          g: this rank's own gradient
//                h = (m' - b1 m) / (1 - b1)                         m <- m'
//                f <- b2 f + (1 - b2) h^2                           f begins as v
//                p = m / (sqrt(v) + eps),  u = p + decay w
//                s = max over the parameter of (sqrt(v) + eps) / (sqrt(f) + eps)
//                with decay, q = min(1, |p| / |u|):  s <- s q + 1 - q
//                s clamped to [factor_min, factor_max], then to last s (1 ± factor_threshold)
//                w <- w - lr c s u
// The paper scales the momenta of all parameters alike before it compresses them with one scale; here each parameter
// has scales of its own, which makes that unnecessary. Elements without a gradient in the warm-up: see onebit_adam.h.
// States: "exp_avg" (m), "exp_avg_sq" (v), "exp_avg_sq_fresh" (f). Numbers: "lamb_coeff" (c), "factor" (last s).
#pragma once

#include "tessera/optim/optimizer.h"

namespace tessera::optim {

struct OneBitLambOptions {
  int64_t freeze_step = 100'000;
  double min_coeff = 0.01;  // of the trust ratio
  double max_coeff = 10;
  double coeff_beta = 0.9;
  double factor_min = 0.5;
  double factor_max = 4;
  double factor_threshold = 0.1;
};

class OneBitLamb : public Optimizer {
 public:
  explicit OneBitLamb(const OneBitLambOptions& options) : options_(options) {}

  std::vector<std::string> state_names() const override { return {"exp_avg", "exp_avg_sq", "exp_avg_sq_fresh"}; }
  std::vector<std::string> number_names() const override { return {"lamb_coeff", "factor"}; }
  void update(std::span<ParamShard> shards, const UpdateInput& input) const override;

  bool averages_by_signs() const override { return true; }
  bool takes_own_gradients(int64_t step) const override { return step > options_.freeze_step; }

 private:
  void update_warm(std::span<ParamShard> shards, const UpdateInput& input) const;
  void update_compressed(std::span<ParamShard> shards, const UpdateInput& input) const;

  OneBitLambOptions options_;
};

}  // namespace tessera::optim
