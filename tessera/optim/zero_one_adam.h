// 0/1 Adam (Lu et al. 2022, algorithm 1): no warm-up at full communication. While the step t is at most
// var_freeze_step, the second moment is renewed at ever rarer steps, and between them gradients are averaged by signs
// (comm/sign_compression.h); after it, ranks take steps of their own and meet at ever rarer steps.
//   t <= var_freeze_step
//     t a multiple of the interval   g: the mean gradient; v <- b2 v + (1 - b2) g^2
//     otherwise                      g: the mean by signs of the ranks' gradients
//     always                         m <- b1 m + (1 - b1) g;  w <- w - lr (m / (sqrt(v) + eps) + decay w)
//     the interval begins as 1 and doubles after each var_update_scaler renewals
//   t > var_freeze_step              g: this rank's own gradient; w0: the weights when the ranks last met
//     always                         m <- b1 m + (1 - b1) g;  w <- w - lr (m / (sqrt(v) + eps) + decay w)
//                                    u <- u + lr m;  s <- s + lr
//     t a multiple of the interval   u <- mean by signs of u;  m <- u / s
//                                    w <- w0 (1 - s decay) - u / (sqrt(v) + eps);  w0 <- w;  u <- 0;  s <- 0
//     the interval begins as 1 and doubles after each local_step_scaler steps, up to local_step_clipper
// DeepSpeed takes w0 to be w + u, which rounding makes another one on every rank, and mixes the decay into the
// momentum; here the ranks hold the same weights whenever they meet. Elements without a gradient so far: see
// onebit_adam.h. States: "exp_avg" (m), "exp_avg_sq" (v), "momentum_accumulator" (u), "met_weight" (w0). Numbers:
// "lr_sum" (s).
#pragma once

#include "tessera/optim/optimizer.h"

namespace tessera::optim {

struct ZeroOneAdamOptions {
  int64_t var_freeze_step = 100'000;
  int64_t var_update_scaler = 16;
  int64_t local_step_scaler = 32'678;
  int64_t local_step_clipper = 16;
};

class ZeroOneAdam : public Optimizer {
 public:
  explicit ZeroOneAdam(const ZeroOneAdamOptions& options) : options_(options) {}

  std::vector<std::string> state_names() const override {
    return {"exp_avg", "exp_avg_sq", "momentum_accumulator", "met_weight"};
  }
  std::vector<std::string> number_names() const override { return {"lr_sum"}; }
  void update(std::span<ParamShard> shards, const UpdateInput& input) const override;

  bool averages_by_signs() const override { return true; }
  bool takes_own_gradients(int64_t step) const override { return !renews_variance(step); }
  bool ranks_differ(std::span<const double> numbers) const override { return numbers.front() != 0; }

  bool renews_variance(int64_t step) const;  // the interval's rule
  bool ranks_meet(int64_t step) const;

 private:
  bool is_local(int64_t step) const { return step > options_.var_freeze_step; }
  void meet(std::span<ParamShard> shards, const UpdateInput& input) const;

  ZeroOneAdamOptions options_;
};

}  // namespace tessera::optim
