// Parameters that share their hyperparameters. A schedule writes `lr` (and, for OneCycle, `beta1`) before each step.
#pragma once

namespace tessera::optim {

struct ParamGroup {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  double momentum = 0;          // SGD, Muon
  bool orthogonalized = false;  // Muon: these are the matrices; the rest is Adam's
};

}  // namespace tessera::optim
