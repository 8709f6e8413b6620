#include "tessera/optim/optimizers.h"

#include "tessera/optim/adam.h"

namespace tessera::optim {
namespace {

std::unique_ptr<Optimizer> make_adam(const config::OptimizerOptions& options) {
  return std::make_unique<Adam>(
      AdamOptions{.decoupled_decay = options.decoupled_decay, .bias_correction = options.bias_correction});
}

}  // namespace

Registry<MakeOptimizer> optimizers() {
  static constexpr Registry<MakeOptimizer>::Entry kEntries[] = {
      {"Adam", "Adam; decoupled decay unless adam_w_mode is false (Kingma & Ba 2015)", make_adam},
      {"AdamW", "Adam with decoupled decay (Loshchilov & Hutter 2019)", make_adam},
  };
  return {"optimizer", kEntries};
}

}  // namespace tessera::optim
