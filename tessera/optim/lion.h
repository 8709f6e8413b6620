// Lion (Chen et al. 2023, algorithm 2):
//   w <- w - lr decay w
//   w <- w - lr sign(b1 m + (1 - b1) g)
//   m <- b2 m + (1 - b2) g
// State: "exp_avg" (m).
#pragma once

#include "tessera/optim/optimizer.h"

namespace tessera::optim {

class Lion : public Optimizer {
 public:
  std::vector<std::string> state_names() const override { return {"exp_avg"}; }
  void update(std::span<ParamShard> shards, const UpdateInput& input) const override;
  bool elementwise() const override { return true; }
};

}  // namespace tessera::optim
