#include "tessera/nn/nf4_product.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/kernels/matrix_products.h"
#include "tessera/nn/layers.h"

namespace tessera::nn {
namespace {

class Nf4Product : public torch::autograd::Function<Nf4Product> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& blocks, const at::Tensor& nested, const std::optional<at::Tensor>& bias,
                            const Nf4Part& part) {
    context->save_for_backward({blocks, nested});
    context->saved_data["part"] =
        std::vector<int64_t>{part.rows,      part.columns,        part.stacked,     part.rows_of_each,
                             part.first_row, part.columns_of_all, part.first_column};
    context->saved_data["dtype"] = input.scalar_type();
    const at::Tensor weight = kernels::dequantize_nf4({.blocks = blocks, .nested = nested}, part, input.scalar_type());
    return linear(input, weight, bias.value_or(at::Tensor()));
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& output_grads) {
    const std::vector<int64_t> kept = context->saved_data["part"].toIntVector();
    const Nf4Part part{.rows = kept[0],
                       .columns = kept[1],
                       .stacked = kept[2],
                       .rows_of_each = kept[3],
                       .first_row = kept[4],
                       .columns_of_all = kept[5],
                       .first_column = kept[6]};
    const auto saved = context->get_saved_variables();
    const auto dtype = context->saved_data["dtype"].toScalarType();
    const at::Tensor grad = output_grads[0].reshape({-1, part.rows});
    const auto computed_in =
        grad.is_cpu() && !kernels::has_fast_products(grad.scalar_type()) ? at::kFloat : grad.scalar_type();
    const at::Tensor weight =
        kernels::dequantize_nf4({.blocks = saved[0], .nested = saved[1]}, part, grad.scalar_type()).to(computed_in);
    std::vector<int64_t> shape = output_grads[0].sizes().vec();
    shape.back() = part.columns;
    const at::Tensor input_grad = at::mm(grad.to(computed_in), weight).view(shape).to(dtype);
    return {input_grad, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};  // one for each argument
  }
};

}  // namespace

Nf4 declared_nf4(const Nf4Part& part) {
  const auto declared = [](int64_t bytes) {
    at::Tensor parameter = at::empty({0}, at::kByte);
    parameter.unsafeGetTensorImpl()->set_sizes_contiguous({bytes});
    return parameter;
  };
  return {.blocks = declared(kernels::nf4_block_bytes(part.rows * part.columns)),
          .nested = declared(kernels::nf4_nested_bytes(part.numel_of_whole()))};
}

Nf4 quantized(const at::Tensor& weight) {
  const Nf4 bytes{.blocks = at::empty({kernels::nf4_block_bytes(weight.numel())}, at::kByte),
                  .nested = at::empty({kernels::nf4_nested_bytes(weight.numel())}, at::kByte)};
  kernels::quantize_nf4(weight.contiguous(), bytes);
  return bytes;
}

at::Tensor dequantized(const Nf4Weight& weight, at::ScalarType dtype) {
  return kernels::dequantize_nf4(weight.bytes, weight.part, dtype);
}

at::Tensor nf4_product(const at::Tensor& input, const Nf4Weight& weight, const at::Tensor& bias) {
  TESSERA_INVARIANT(!bias.defined() || !bias.requires_grad());
  return Nf4Product::apply(input, weight.bytes.blocks, weight.bytes.nested,
                           bias.defined() ? std::optional(bias) : std::nullopt, weight.part);
}

}  // namespace tessera::nn
