// The losses of direct preference optimisation (Rafailov et al. 2023): of a pair of answers to a prompt x, of which y_w
// was preferred to y_l,
//
//   h_w = log p(y_w | x) - log p_ref(y_w | x), h_l likewise, D = h_w - h_l
//
//   sigmoid   -(1 - e) log sigmoid(b D) - e log sigmoid(-b D)
//             equation 7; e is label_smoothing, of Mitchell 2023 (cDPO)
//
//   hinge     max(0, 1 - b D)
//             Liu et al. 2023 (RSO), of Zhao et al. 2023 (SLiC)
//
//   ipo       (h_w / |y_w| - h_l / |y_l| - 1 / (2 b))^2
//             Azar et al. 2023, equation 17, of means over tokens as in TRL
//
// The reward of an answer is b h; a pair is told right where the preferred one's is larger.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/config/run_file.h"

namespace tessera::train {

// Of some pairs, in fp32: (pairs) each.
struct AnswerLogProbs {
  at::Tensor chosen, rejected;
};

struct PreferenceLosses {
  at::Tensor losses;   // (pairs)
  at::Tensor margins;  // b D, without gradients: the difference of the rewards
};

// `lengths`: of the answers, in tokens; used by ipo alone.
PreferenceLosses preference_losses(const config::RunFile::Dpo& options, const AnswerLogProbs& policy,
                                   const AnswerLogProbs& reference, const AnswerLogProbs& lengths);

}  // namespace tessera::train
