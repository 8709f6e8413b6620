// Muon (Jordan et al. 2024) for the weight matrices of hidden layers, Adam for everything else:
//   m <- m + (1 - momentum) (g - m)
//   u  = orthogonalized(g + momentum (m - g)) sqrt(max(1, rows / columns))       of the whole matrix, [rows, columns]
//   w <- w - lr decay w - lr u
// where orthogonalized(u) is five steps of X <- a X + (b A + c A^2) X, A = X X^T, from X = u / (|u| + 1e-7), with
// (a, b, c) = (3.4445, -4.7750, 2.0315); a matrix with more rows than columns is transposed meanwhile, and dimensions
// beyond the first are columns. The iteration runs in fp32.
//
// States: "exp_avg" (m, and Adam's first moment), "exp_avg_sq" (Adam's second moment; stays 0 for matrices).
#pragma once

#include "tessera/optim/adam.h"
#include "tessera/optim/optimizer.h"

namespace tessera::optim {

class Muon : public Optimizer {
 public:
  // For the groups that are not orthogonalized.
  explicit Muon(const AdamOptions& adam) : adam_(adam) {}

  std::vector<std::string> state_names() const override { return {"exp_avg", "exp_avg_sq"}; }
  void update(std::span<ParamShard> shards, const UpdateInput& input) const override;

 private:
  Adam adam_;
};

// Whether a parameter is one of Muon's: two dimensions or more, and its name has neither "embed" nor "lm_head" in it
// (DeepSpeed's rule).
bool is_muons(const std::string& name, size_t dimensions);

}  // namespace tessera::optim
