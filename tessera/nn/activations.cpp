#include "tessera/nn/activations.h"

#include <ATen/ops/gelu.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <torch/csrc/autograd/custom_function.h>

namespace tessera::nn {
namespace {

at::Tensor tanh_gelu(const at::Tensor& input) { return at::gelu(input, "tanh"); }

struct Named {
  const char* name;
  Activation function;
};
constexpr Named kActivations[] = {
    {"gelu", [](const at::Tensor& input) { return at::gelu(input); }},
    {"gelu_new", tanh_gelu},
    {"gelu_pytorch_tanh", tanh_gelu},
    {"relu", [](const at::Tensor& input) { return at::relu(input); }},
    {"silu", [](const at::Tensor& input) { return at::silu(input); }},
};

class SiluTimes : public torch::autograd::Function<SiluTimes> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& gate, const at::Tensor& up) {
    context->save_for_backward({gate, up});
    return at::silu(gate).mul_(up);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    const auto saved = context->get_saved_variables();
    const at::Tensor up_grad = at::silu(saved[0]).mul_(grads[0]);
    return {at::silu_backward(grads[0] * saved[1], saved[0]), up_grad};
  }
};

}  // namespace

Activation find_activation(const std::string& name) {
  for (const Named& each : kActivations) {
    if (name == each.name) return each.function;
  }
  return nullptr;
}

std::vector<std::string> known_activations() {
  std::vector<std::string> names;
  for (const Named& each : kActivations) names.emplace_back(each.name);
  return names;
}

at::Tensor silu_times(const at::Tensor& gate, const at::Tensor& up) { return SiluTimes::apply(gate, up); }

}  // namespace tessera::nn
