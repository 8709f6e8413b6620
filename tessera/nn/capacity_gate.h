// Routers whose experts take a bounded number of tokens each, and drop the rest, as those of GShard and Switch
// Transformers (Lepikhin et al. 2020, arXiv 2006.16668; Fedus et al. 2021, arXiv 2101.03961) and DeepSpeed's layers
// with experts.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "tessera/nn/router.h"

namespace tessera::nn {

struct CapacityOptions {
  int64_t per_token = 1;
  double factor = 1;      // an expert takes ceil(factor * per_token * tokens / experts) of these tokens …
  int64_t least = 4;      // … but at least so many
  bool drops = true;      // false: it takes all that come
  bool in_order = false;  // of one expert a token: those that stand first are taken; else some at random
  bool noise = false;     // of one expert a token: Gumbel noise decides, too; of two: which the second is
};

struct CapacityRouting {
  Routing routing;          // experts: the number of experts stands for one that takes the token no more, weight 0
  at::Tensor balance_loss;  // experts * sum of f P, where f counts what was chosen before any was dropped
  at::Tensor counts;        // (experts) int64: how many tokens chose each, dropped ones among them
};

// logits (tokens, experts), in fp32 from then on. Of one expert a token the weight is its probability; of several,
// their probabilities divided by the sum of those that are left. Which tokens an expert takes: of one a token, see
// `in_order`; of two, first choices before second ones, each in order; of more, those with the highest probabilities.
// `used` (tokens), undefined: all: of one expert a token, those that are 0 go nowhere. Random numbers are those of the
// default generator of the logits' device. ErrorKind::kUsage: of one expert a token, where there are fewer tokens than
// `least`.
CapacityRouting route_by_capacity(const at::Tensor& logits, const CapacityOptions& options,
                                  const at::Tensor& used = {});

}  // namespace tessera::nn
