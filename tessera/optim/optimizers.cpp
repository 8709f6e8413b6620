#include "tessera/optim/optimizers.h"

#include "tessera/optim/adagrad.h"
#include "tessera/optim/adam.h"
#include "tessera/optim/lamb.h"
#include "tessera/optim/lion.h"
#include "tessera/optim/muon.h"
#include "tessera/optim/onebit_adam.h"
#include "tessera/optim/onebit_lamb.h"
#include "tessera/optim/sgd.h"
#include "tessera/optim/zero_one_adam.h"

namespace tessera::optim {
namespace {

using config::OptimizerOptions;

AdamOptions adam_options(const OptimizerOptions& options) {
  return {.decoupled_decay = options.params.value("adam_w_mode", true),
          .bias_correction = options.params.value("bias_correction", true),
          .amsgrad = options.params.value("amsgrad", false)};
}

std::unique_ptr<Optimizer> make_adam(const OptimizerOptions& options) {
  return std::make_unique<Adam>(adam_options(options));
}

std::unique_ptr<Optimizer> make_adagrad(const OptimizerOptions& options) {
  return std::make_unique<Adagrad>(AdagradOptions{.lr_decay = options.params.value("lr_decay", 0.0),
                                                  .maximize = options.params.value("maximize", false)});
}

std::unique_ptr<Optimizer> make_lamb(const OptimizerOptions& options) {
  return std::make_unique<Lamb>(LambOptions{.bias_correction = options.params.value("bias_correction", true),
                                            .eps_inside_sqrt = options.params.value("eps_inside_sqrt", false),
                                            .min_coeff = options.params.value("min_coeff", 0.01),
                                            .max_coeff = options.params.value("max_coeff", 10.0)});
}

std::unique_ptr<Optimizer> make_lion(const OptimizerOptions&) { return std::make_unique<Lion>(); }

std::unique_ptr<Optimizer> make_muon(const OptimizerOptions& options) {
  return std::make_unique<Muon>(adam_options(options));
}

std::unique_ptr<Optimizer> make_onebit_adam(const OptimizerOptions& options) {
  return std::make_unique<OneBitAdam>(options.params.value("freeze_step", int64_t{100'000}));
}

std::unique_ptr<Optimizer> make_onebit_lamb(const OptimizerOptions& options) {
  const config::Json& params = options.params;
  OneBitLambOptions made;
  made.freeze_step = params.value("freeze_step", made.freeze_step);
  made.min_coeff = params.value("min_coeff", made.min_coeff);
  made.max_coeff = params.value("max_coeff", made.max_coeff);
  made.coeff_beta = params.value("coeff_beta", made.coeff_beta);
  made.factor_min = params.value("factor_min", made.factor_min);
  made.factor_max = params.value("factor_max", made.factor_max);
  made.factor_threshold = params.value("factor_threshold", made.factor_threshold);
  return std::make_unique<OneBitLamb>(made);
}

std::unique_ptr<Optimizer> make_zero_one_adam(const OptimizerOptions& options) {
  const config::Json& params = options.params;
  ZeroOneAdamOptions made;
  made.var_freeze_step = params.value("var_freeze_step", made.var_freeze_step);
  made.var_update_scaler = params.value("var_update_scaler", made.var_update_scaler);
  made.local_step_scaler = params.value("local_step_scaler", made.local_step_scaler);
  made.local_step_clipper = params.value("local_step_clipper", made.local_step_clipper);
  return std::make_unique<ZeroOneAdam>(made);
}

std::unique_ptr<Optimizer> make_sgd(const OptimizerOptions& options) {
  return std::make_unique<Sgd>(SgdOptions{.has_momentum = options.momentum != 0,
                                          .dampening = options.params.value("dampening", 0.0),
                                          .nesterov = options.params.value("nesterov", false),
                                          .maximize = options.params.value("maximize", false)});
}

}  // namespace

Registry<MakeOptimizer> optimizers() {
  static constexpr Registry<MakeOptimizer>::Entry kEntries[] = {
      {"Adam", "Adam; decoupled decay unless adam_w_mode is false (Kingma & Ba 2015)", make_adam},
      {"AdamW", "Adam with decoupled decay (Loshchilov & Hutter 2019)", make_adam},
      {"Adagrad", "divides by the root of the sum of squares (Duchi et al. 2011)", make_adagrad},
      {"Lamb", "Adam with a trust ratio for each parameter (You et al. 2020)", make_lamb},
      {"Lion", "steps by the sign of a momentum (Chen et al. 2023)", make_lion},
      {"Muon", "orthogonalized steps for whole matrices, Adam for the rest (Jordan et al. 2024)", make_muon},
      {"OneBitAdam", "Adam with sign-compressed momentum after a warm-up (Tang et al. 2021)", make_onebit_adam},
      {"OneBitLamb", "LAMB with sign-compressed momentum after a warm-up (Li et al. 2021)", make_onebit_lamb},
      {"SGD", "stochastic gradient descent, with momentum, optionally Nesterov's", make_sgd},
      {"ZeroOneAdam", "Adam with sign-compressed gradients, then local steps (Lu et al. 2022)", make_zero_one_adam},
  };
  return {"optimizer", kEntries};
}

std::vector<ParamGroup> param_groups(const OptimizerOptions& options) {
  ParamGroup group{.lr = options.lr,
                   .beta1 = options.beta1,
                   .beta2 = options.beta2,
                   .eps = options.eps,
                   .weight_decay = options.weight_decay,
                   .momentum = options.momentum};
  const auto lr = [&](const char* key) {
    const auto found = options.params.find(key);
    return found == options.params.end() || found->is_null() ? options.lr : found->get<double>();
  };
  const bool muon = options.type == "Muon";
  std::vector<ParamGroup> groups(muon ? 4 : 2, group);
  groups[1].weight_decay = 0;
  if (muon) {
    groups[0].lr = groups[1].lr = lr("adam_lr");
    groups[2].lr = groups[3].lr = lr("muon_lr");
    groups[2].orthogonalized = groups[3].orthogonalized = true;
    groups[3].weight_decay = 0;
  }
  return groups;
}

size_t group_of(const OptimizerOptions& options, const std::string& name, size_t dimensions, bool decays) {
  const bool matrix = options.type == "Muon" && is_muons(name, dimensions);
  return (matrix ? 2 : 0) + (decays ? 0 : 1);
}

}  // namespace tessera::optim
