// 1-bit Adam (Tang et al. 2021, algorithm 1): Adam without bias correction for freeze_step steps; from then on the
// second moment stays as it is, and the ranks average momentum by signs (comm/sign_compression.h) where they averaged
// gradients.
//   warm-up      g: the mean gradient
//                m <- b1 m + (1 - b1) g              v <- b2 v + (1 - b2) g^2
//   compressed   g: this rank's own gradient
//                m <- mean by signs of (b1 m + (1 - b1) g)
//   always       w <- w - lr (m / (sqrt(v) + eps) + decay w)
// Elements that had no gradient in the warm-up (v is 0: positions longer than any sample) stay where they are;
// DeepSpeed needs a mask from the user for them. The scales are those of a parameter's part in one rank's shard.
// States: "exp_avg" (m), "exp_avg_sq" (v).
#pragma once

#include "tessera/optim/optimizer.h"

namespace tessera::optim {

class OneBitAdam : public Optimizer {
 public:
  // freeze_step: steps of the warm-up.
  explicit OneBitAdam(int64_t freeze_step) : freeze_step_(freeze_step) {}

  std::vector<std::string> state_names() const override { return {"exp_avg", "exp_avg_sq"}; }
  void update(std::span<ParamShard> shards, const UpdateInput& input) const override;

  bool averages_by_signs() const override { return true; }
  bool takes_own_gradients(int64_t step) const override { return step > freeze_step_; }

 private:
  int64_t freeze_step_;
};

}  // namespace tessera::optim
