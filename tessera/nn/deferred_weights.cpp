#include "tessera/nn/deferred_weights.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <utility>

#include "tessera/kernels/gradient_place.h"
#include "tessera/nn/layers.h"

namespace tessera::nn {
namespace {

thread_local DeferredWeights* taker = nullptr;

}  // namespace

struct DeferredWeights::Function : torch::autograd::Function<DeferredWeights::Function> {
  // `weight`: where something goes back to the input, without autograd's part; else nothing would come back here.
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& weight, const std::optional<at::Tensor>& bias, DeferredWeights* into,
                            const at::Tensor* parameter) {
    context->save_for_backward({input, weight});
    context->saved_data["has_bias"] = bias.has_value();
    context->saved_data["into"] = reinterpret_cast<int64_t>(into);
    context->saved_data["weight"] = *parameter;
    return linear(input, weight, bias.value_or(at::Tensor()));
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& output_grads) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &input = saved[0], &weight = saved[1];
    const at::Tensor gradient = output_grads[0].reshape({-1, weight.size(0)});
    at::Tensor input_grad, bias_grad;
    if (context->needs_input_grad(0)) input_grad = linear(gradient, weight.t(), at::Tensor()).view(input.sizes());
    if (context->saved_data["has_bias"].toBool() && context->needs_input_grad(2)) bias_grad = gradient.sum(0);
    auto* const into = reinterpret_cast<DeferredWeights*>(context->saved_data["into"].toInt());
    into->products_.push_back({.weight = context->saved_data["weight"].toTensor(),
                               .input = input.detach().reshape({-1, weight.size(1)}),
                               .gradient = gradient});
    return {input_grad, at::Tensor(), bias_grad, at::Tensor(), at::Tensor()};
  }
};

DeferredWeights::Scope::Scope(DeferredWeights& weights) : before_(std::exchange(taker, &weights)) {}
DeferredWeights::Scope::~Scope() { taker = before_; }

void DeferredWeights::run() {
  std::vector<Product> products = std::exchange(products_, {});
  for (Product& product : products) {
    at::Tensor gradient;
    {
      const at::NoGradGuard no_grad;
      const bool written =
          kernels::write_weight_gradient(product.weight, /*transposed=*/false, product.gradient, product.input);
      if (!written) gradient = linear(product.gradient.t(), product.input.t(), at::Tensor());
    }
    if (gradient.defined()) torch::autograd::backward({product.weight}, {gradient});
    product = {};
  }
}

bool is_deferred(const at::Tensor& weight) {
  return taker != nullptr && at::GradMode::is_enabled() && weight.requires_grad();
}

at::Tensor linear_with_deferred_weight(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias) {
  return DeferredWeights::Function::apply(input, input.requires_grad() ? weight.detach() : weight,
                                          bias.defined() ? std::optional(bias) : std::nullopt, taker, &weight);
}

}  // namespace tessera::nn
