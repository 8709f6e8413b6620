#include "tessera/nn/nf4_product.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include "tessera/base/error.h"
#include "tessera/kernels/matrix_products.h"
#include "tessera/kernels/nf4.h"
#include "tessera/nn/layers.h"

namespace tessera::nn {
namespace {

class Nf4Product : public torch::autograd::Function<Nf4Product> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input, const at::Tensor& bytes,
                            const std::optional<at::Tensor>& bias, int64_t out, int64_t in) {
    context->save_for_backward({bytes});
    context->saved_data["out"] = out;
    context->saved_data["in"] = in;
    context->saved_data["dtype"] = input.scalar_type();
    const at::Tensor weight = kernels::dequantize_nf4(bytes, {out, in}, input.scalar_type());
    return linear(input, weight, bias.value_or(at::Tensor()));
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& output_grads) {
    const int64_t out = context->saved_data["out"].toInt(), in = context->saved_data["in"].toInt();
    const auto dtype = context->saved_data["dtype"].toScalarType();
    const at::Tensor grad = output_grads[0].reshape({-1, out});
    const auto computed_in =
        grad.is_cpu() && !kernels::has_fast_products(grad.scalar_type()) ? at::kFloat : grad.scalar_type();
    const at::Tensor weight =
        kernels::dequantize_nf4(context->get_saved_variables()[0], {out, in}, grad.scalar_type()).to(computed_in);
    std::vector<int64_t> shape = output_grads[0].sizes().vec();
    shape.back() = in;
    const at::Tensor input_grad = at::mm(grad.to(computed_in), weight).view(shape).to(dtype);
    return {input_grad, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor declared_nf4(const Nf4Shape& shape) {
  at::Tensor parameter = at::empty({0}, at::kByte);
  parameter.unsafeGetTensorImpl()->set_sizes_contiguous({kernels::nf4_bytes(shape.out * shape.in)});
  return parameter;
}

void quantize_weight(const at::Tensor& weight, const at::Tensor& bytes) {
  kernels::quantize_nf4(weight.contiguous(), bytes);
}

at::Tensor nf4_weight(const at::Tensor& bytes, const Nf4Shape& shape, at::ScalarType dtype) {
  return kernels::dequantize_nf4(bytes, {shape.out, shape.in}, dtype);
}

at::Tensor nf4_product(const at::Tensor& input, const at::Tensor& bytes, const Nf4Shape& shape,
                       const at::Tensor& bias) {
  TESSERA_INVARIANT(!bias.defined() || !bias.requires_grad());
  return Nf4Product::apply(input, bytes, bias.defined() ? std::optional(bias) : std::nullopt, shape.out, shape.in);
}

}  // namespace tessera::nn
