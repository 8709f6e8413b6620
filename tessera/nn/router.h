// Which experts of a layer each token goes to, and how much what each makes of it counts (Shazeer et al. 2017, arXiv
// 1701.06538; Fedus et al. 2021, "Switch Transformers", arXiv 2101.03961).
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>

namespace tessera::nn {

class TensorAxis;

struct RouterOptions {
  int64_t experts = 0;
  int64_t per_token = 1;  // of them, those with the highest scores
  enum class Scores {
    kSoftmax,
    kSigmoid,  // of each expert alone (DeepSeek-AI 2024, "DeepSeek-V3", arXiv 2412.19437, equations 13 to 16)
  } scores = Scores::kSoftmax;
  bool sums_to_one = false;  // the weights of a token's experts are divided by their sum
  double scale = 1;          // … and multiplied by this
};

// Losses that keep the choice even and its logits small, added to a model's loss, times these:
//
//   balance   experts * sum over experts of f P: f, how often a token goes to the expert, and P, the mean of its
//             softmax probability, over all tokens and layers (Fedus et al. 2021, equations 4 to 6, as transformers)
//   z         the mean over them of log(sum of exp(logits))^2 (Zoph et al. 2022, "ST-MoE", arXiv 2202.08906, equation
//   5)
struct RouterLosses {
  double balance = 0, z = 0;
  bool any() const { return balance != 0 || z != 0; }
};

struct Routing {
  at::Tensor experts;  // (tokens, per token) int64, the one with the highest score first
  at::Tensor weights;  // (tokens, per token) fp32
  at::Tensor logits;   // (tokens, experts), as they were given
};

// logits (tokens, experts). Scores are in fp32. `bias` (experts), undefined: none: is added to the scores by which
// experts are chosen, not to the weights. With gradients, of the weights.
Routing route(const at::Tensor& logits, const RouterOptions& options, const at::Tensor& bias = {});

// What those losses are made of, which tokens, layers and ranks add up: (2 * experts + 1) in fp32: how often each
// expert was chosen, its probabilities, the squares of the logarithms. `counted` (tokens) bool: undefined: all. With
// gradients.
at::Tensor router_sums(const Routing& routing, const at::Tensor& counted);

// Of `rows` tokens of all layers and ranks together. `own`: this rank's part of the sums, through which gradients flow;
// `all`: the sums. Those of all ranks add up to the loss. A scalar in fp32.
at::Tensor router_loss(const at::Tensor& own, const at::Tensor& all, double rows, const RouterLosses& losses);

// The parameter "weight" (experts, width), declared. `axis`: over whose ranks the experts are cut that take its
// choices, so that each sees a part of its gradient.
class Router : public torch::nn::Module {
 public:
  Router(int64_t width, const RouterOptions& options, const TensorAxis& axis);
  Routing forward(const at::Tensor& tokens) const;  // (tokens, width)

  const RouterOptions& options() const { return options_; }

  at::Tensor weight;

 private:
  RouterOptions options_;
  std::shared_ptr<const TensorAxis> axis_;
};

}  // namespace tessera::nn
