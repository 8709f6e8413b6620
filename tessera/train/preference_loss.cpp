#include "tessera/train/preference_loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/log_sigmoid.h>

namespace tessera::train {
namespace {

at::Tensor losses_of(const config::RunFile::Dpo& options, const AnswerLogProbs& ratios, const AnswerLogProbs& lengths) {
  const at::Tensor scaled = (ratios.chosen - ratios.rejected) * options.beta;
  switch (options.loss) {
    case config::RunFile::Dpo::Loss::kHinge:
      return (1 - scaled).clamp_min(0);
    case config::RunFile::Dpo::Loss::kIpo:
      return (ratios.chosen / lengths.chosen - ratios.rejected / lengths.rejected - 1 / (2 * options.beta)).square();
    case config::RunFile::Dpo::Loss::kSigmoid:
      break;
  }
  const double smoothing = options.label_smoothing;
  const at::Tensor right = -at::log_sigmoid(scaled);
  return smoothing == 0 ? right : right * (1 - smoothing) - at::log_sigmoid(-scaled) * smoothing;
}

}  // namespace

PreferenceLosses preference_losses(const config::RunFile::Dpo& options, const AnswerLogProbs& policy,
                                   const AnswerLogProbs& reference, const AnswerLogProbs& lengths) {
  const AnswerLogProbs ratios{policy.chosen - reference.chosen, policy.rejected - reference.rejected};
  return {.losses = losses_of(options, ratios, lengths),
          .margins = (ratios.chosen - ratios.rejected).detach() * options.beta};
}

}  // namespace tessera::train
