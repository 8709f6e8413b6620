#include "tessera/nn/layers.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <unordered_set>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/kernels/gradient_place.h"
#include "tessera/kernels/matrix_products.h"
#include "tessera/nn/deferred_weights.h"
#include "tessera/nn/lora.h"
#include "tessera/nn/nf4_product.h"
#include "tessera/nn/own_tokens.h"
#include "tessera/nn/tensor_axis.h"
#include "tessera/nn/vocabulary.h"

namespace tessera::nn {
namespace {

class LinearInFp32 : public torch::autograd::Function<LinearInFp32> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
    context->save_for_backward({input, weight});
    context->saved_data["has_bias"] = bias.has_value();
    const at::Tensor wide_input = input.to(at::kFloat);
    const at::Tensor wide_weight = weight.to(at::kFloat);
    const at::Tensor output =
        bias ? at::linear(wide_input, wide_weight, bias->to(at::kFloat)) : at::linear(wide_input, wide_weight);
    return output.to(input.scalar_type());
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& output_grads) {
    const auto saved = context->get_saved_variables();
    const at::Tensor& input = saved[0];
    const at::Tensor& weight = saved[1];
    const auto dtype = input.scalar_type();
    const at::Tensor grad = output_grads[0].to(at::kFloat).reshape({-1, weight.size(0)});  // (rows, out)
    at::Tensor input_grad, weight_grad, bias_grad;
    if (context->needs_input_grad(0)) {
      input_grad = at::mm(grad, weight.to(at::kFloat)).view(input.sizes()).to(dtype);
    }
    if (context->needs_input_grad(1)) {
      weight_grad = at::mm(grad.t(), input.to(at::kFloat).reshape({-1, weight.size(1)})).to(dtype);
    }
    if (context->saved_data["has_bias"].toBool() && context->needs_input_grad(2)) bias_grad = grad.sum(0).to(dtype);
    return {input_grad, weight_grad, bias_grad};
  }
};

// The weight as it is in the layer: (out, in) or, where `transposed`, (in, out).
class LinearToPlace : public torch::autograd::Function<LinearToPlace> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& weight, const std::optional<at::Tensor>& bias, bool transposed) {
    context->save_for_backward({input, weight});
    context->saved_data["parameter"] = weight;  // itself: what is saved may come back as a copy of its handle
    context->saved_data["has_bias"] = bias.has_value();
    context->saved_data["transposed"] = transposed;
    return at::linear(input, transposed ? weight.t() : weight, bias);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& output_grads) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &input = saved[0], &weight = saved[1];
    const bool transposed = context->saved_data["transposed"].toBool();
    const at::Tensor rows = input.flatten(0, -2), grad = output_grads[0].flatten(0, -2);
    at::Tensor input_grad, weight_grad, bias_grad;
    if (context->needs_input_grad(0)) {  // first: once the weight's gradient is there, its memory may be released
      input_grad = at::mm(grad, transposed ? weight.t() : weight).view(input.sizes());
    }
    if (context->saved_data["has_bias"].toBool() && context->needs_input_grad(2)) bias_grad = grad.sum(0);
    const at::Tensor parameter = context->saved_data["parameter"].toTensor();
    if (context->needs_input_grad(1) && !kernels::write_weight_gradient(parameter, transposed, grad, rows)) {
      weight_grad = transposed ? at::mm(rows.t(), grad) : at::mm(grad.t(), rows);
    }
    return {input_grad, weight_grad, bias_grad, at::Tensor()};
  }
};

// Keeps the input and one number a row for backward.
class RmsNormFunction : public torch::autograd::Function<RmsNormFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& weight, double eps, bool around_one) {
    const at::Tensor wide = input.to(at::kFloat);
    const at::Tensor scale = (wide.square().mean(-1, /*keepdim=*/true) + eps).rsqrt_();
    context->save_for_backward({input, weight, scale});
    context->saved_data["around_one"] = around_one;
    if (around_one) return (wide * scale * gain_of(weight, around_one)).to(input.scalar_type());
    return (wide * scale).to(input.scalar_type()) * weight;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& output_grads) {
    const auto saved = context->get_saved_variables();
    const at::Tensor normal = saved[0].to(at::kFloat) * saved[2];
    const at::Tensor grad = output_grads[0].to(at::kFloat);
    at::Tensor input_grad, weight_grad;
    if (context->needs_input_grad(1)) {
      weight_grad = (grad * normal).reshape({-1, normal.size(-1)}).sum(0).to(saved[1].scalar_type());
    }
    if (context->needs_input_grad(0)) {
      const at::Tensor scaled = grad * gain_of(saved[1], context->saved_data["around_one"].toBool());
      const at::Tensor along = (scaled * normal).mean(-1, /*keepdim=*/true);
      input_grad = ((scaled - normal * along) * saved[2]).to(saved[0].scalar_type());
    }
    return {input_grad, weight_grad, at::Tensor(), at::Tensor()};
  }

 private:
  static at::Tensor gain_of(const at::Tensor& weight, bool around_one) {
    return around_one ? weight.to(at::kFloat) + 1 : weight;
  }
};

// Null over an axis of one rank.
std::shared_ptr<const TensorAxis> shared_over(const TensorAxis& axis) {
  return axis.size() > 1 ? std::make_shared<const TensorAxis>(axis) : nullptr;
}

}  // namespace

at::Tensor declared_parameter(std::vector<int64_t> shape) {
  at::Tensor parameter = at::empty({0}, at::kFloat);
  parameter.unsafeGetTensorImpl()->set_sizes_contiguous(shape);  // which allocates nothing, however large it is
  return parameter.requires_grad_(true);
}

Linear::Linear(Features own, bool with_bias, WeightForm form) : own_(own), form_(form) {
  weight = register_parameter(
      "weight", declared_parameter(is_transposed() ? std::vector{own.in, own.out} : std::vector{own.out, own.in}));
  if (with_bias) bias = register_parameter("bias", declared_parameter({own.out}));
}

Linear::Linear(int64_t in_features, int64_t out_features, bool with_bias)
    : Linear(Features{.in = in_features, .out = out_features}, with_bias, WeightForm::kOutIn) {}

Linear::Linear(int64_t in_features, int64_t out_features, bool with_bias, LinearCut cut, WeightForm form)
    : Linear(Features{.in = cut.inputs ? cut.inputs->own().numel() : in_features,
                      .out = cut.outputs ? cut.stacked * cut.outputs->own().numel() : out_features},
             with_bias, form) {
  TESSERA_INVARIANT(!cut.inputs || !cut.outputs);
  TESSERA_INVARIANT(cut.sum != LinearCut::Sum::kLeft || !with_bias);
  if (cut.axis.size() == 1) return;
  if (!cut.inputs || cut.sum != LinearCut::Sum::kWhole) {
    TensorAxis sharers = cut.outputs ? cut.axis.sharers(*cut.outputs) : cut.axis;
    if (sharers.size() > 1) sharers_ = std::make_unique<const TensorAxis>(std::move(sharers));
  }
  cut_ = std::make_unique<const LinearCut>(std::move(cut));
}

Linear::~Linear() = default;

at::Tensor linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias) {
  if (is_deferred(weight)) return linear_with_deferred_weight(input, weight, bias);
  if (input.is_cpu() && !kernels::has_fast_products(input.scalar_type())) {
    return LinearInFp32::apply(input, weight, bias.defined() ? std::optional(bias) : std::nullopt);
  }
  return bias.defined() ? at::linear(input, weight, bias) : at::linear(input, weight);
}

void Linear::specify(const std::string& parameter, layout::ParamSpec& spec) const {
  if (!cut_ || parameter == kNestedScales) return;
  const bool is_weight = parameter == "weight";  // else the bias, or an adapter's lengths of rows
  if (is_weight && quantized_) return specify_blocks(spec);
  const Features features = whole();
  spec.shape = is_weight ? weight_shape() : std::vector{features.out};
  const bool out_is_last = is_weight && is_transposed();
  if (cut_->inputs && is_weight) spec.shards = {cut_->inputs->shard(is_transposed() ? 0 : 1)};
  if (!cut_->outputs) return;
  if (cut_->stacked > 1) {
    spec.folded = {cut_->stacked, cut_->outputs->whole()};
    if (is_weight) spec.folded.insert(out_is_last ? spec.folded.begin() : spec.folded.end(), features.in);
  }
  spec.shards = {cut_->outputs->shard((out_is_last ? 1 : 0) + (cut_->stacked > 1 ? 1 : 0))};
}

void Linear::specify_blocks(layout::ParamSpec& spec) const {
  const Features features = whole();
  spec.shape = {kernels::nf4_block_bytes(features.in * features.out)};
  spec.folded = {cut_->stacked, features.out / cut_->stacked, features.in / kNf4Block, kernels::kNf4BlockBytes};
  if (cut_->outputs) spec.shards = {cut_->outputs->shard(1)};
  if (cut_->inputs) spec.shards = {cut_->inputs->shard(2)};
  for (layout::Shard& shard : spec.shards) {
    for (int64_t& bound : shard.bounds) bound /= shard.dim == 2 ? kNf4Block : 1;
  }
}

at::Tensor Linear::out_in(const at::Tensor& parameter) const {
  return is_transposed() && !quantized_ ? parameter.t() : parameter;
}

at::Tensor Linear::product(const at::Tensor& input, const at::Tensor& with_bias) const {
  if (cut_ && cut_->inputs) {
    const at::Tensor sum =
        summed(quantized_ ? nf4_product(input, quantized_weight(), at::Tensor()) : with_weight(input, at::Tensor()));
    return with_bias.defined() ? sum + (sharers_ ? sharers_->shared_parameter(with_bias) : with_bias) : sum;
  }
  if (quantized_) return nf4_product(input, quantized_weight(), with_bias);
  if (sharers_) return linear(input, out_in(sharers_->shared_parameter(weight)), sharers_->shared_parameter(with_bias));
  return with_weight(input, with_bias);
}

at::Tensor Linear::with_weight(const at::Tensor& input, const at::Tensor& with_bias) const {
  const bool to_place = is_called_once_ && at::GradMode::is_enabled() && weight.scalar_type() == at::kFloat &&
                        input.scalar_type() == at::kFloat &&
                        !at::autocast::is_autocast_enabled(input.device().type()) && !is_deferred(weight) &&
                        kernels::GradientTaker::of(weight) != nullptr;
  if (!to_place) return linear(input, out_in(weight), with_bias);
  return LinearToPlace::apply(input, weight, with_bias.defined() ? std::optional(with_bias) : std::nullopt,
                              is_transposed());
}

at::Tensor Linear::summed(const at::Tensor& own) const {
  switch (cut_->sum) {
    case LinearCut::Sum::kWhole:
      return cut_->axis.out_of_parts(own);
    case LinearCut::Sum::kOwnTokens:
      return out_of_cut_layers(cut_->axis, own);
    case LinearCut::Sum::kLeft:
      return own;
  }
  return own;
}

Linear::Features Linear::whole() const {
  return {.in = cut_ && cut_->inputs ? cut_->inputs->whole() : own_.in,
          .out = cut_ && cut_->outputs ? cut_->stacked * cut_->outputs->whole() : own_.out};
}

std::vector<int64_t> Linear::weight_shape() const {
  const Features features = whole();
  return is_transposed() ? std::vector{features.in, features.out} : std::vector{features.out, features.in};
}

at::Tensor Linear::forward(const at::Tensor& input) const {
  const at::Tensor output = product(input, bias);
  if (!lora_) return output;
  return lora_->forward(
      input, output,
      {.weight = out_in(weight),
       .bias = bias,
       .product = [this](const at::Tensor& x) { return product(x, at::Tensor()); },
       .training = is_training(),
       .dequantized = quantized_ ? [this](at::ScalarType dtype) { return nn::dequantized(quantized_weight(), dtype); }
                                 : std::function<at::Tensor(at::ScalarType)>(),
       .over_inputs = cut_ && cut_->inputs ? &cut_->axis : nullptr,
       .sharers = sharers_.get()});
}

// Where outputs are cut, B is too, and all ranks have A; where inputs are, A is, and all have B: of some tokens each,
// or of their own part, where the sum is so.
void Linear::adapt(const LoraOptions& options) {
  const Features features = whole();
  const auto part = [&](int64_t in, int64_t out, LinearCut cut) {
    return std::make_shared<Linear>(in, out, /*with_bias=*/false, std::move(cut));
  };
  LinearCut of_a, of_b;
  if (cut_ && cut_->inputs) {
    of_a = *cut_;
    if (sharers_) of_b.axis = *sharers_;
  } else if (cut_) {
    of_a.axis = cut_->axis;
    of_b = *cut_;
  }
  lora_ = std::make_unique<LoraBranch>(*this, part(features.in, options.rank, std::move(of_a)),
                                       part(options.rank, features.out, std::move(of_b)), options);
}

void Linear::quantize() {
  const auto refuse_within_a_block = [this](int64_t features, const char* what) {
    if (features % kNf4Block == 0) return;
    throw Error(
        ErrorKind::kConfig,
        {fmt::format("{}: of a matrix a tensor rank has {} {}, and NF4 keeps {} numbers of a row together",
                     cut_->axis.name(), features, what, kNf4Block),
         "model.quantization", "use a parallel.tensor that cuts where blocks end, or leave model.quantization out"});
  };
  if (cut_ && (cut_->inputs || cut_->outputs)) refuse_within_a_block(whole().in, "columns");
  if (cut_ && cut_->inputs) refuse_within_a_block(cut_->inputs->own().begin, "columns before its own");
  if (cut_ && cut_->inputs) refuse_within_a_block(own_.in, "columns");
  quantized_ = true;
  const Nf4 bytes = declared_nf4(quantized_weight().part);
  weight = parameters_["weight"] = bytes.blocks;
  weight_nested = register_parameter(kNestedScales, bytes.nested, /*requires_grad=*/false);
}

Nf4Weight Linear::quantized_weight() const {
  const Features features = whole();
  Nf4Part part = Nf4Part::whole(features.out, features.in);
  part.rows = own_.out;
  part.columns = own_.in;
  if (cut_ && cut_->outputs) {
    part.stacked = cut_->stacked;
    part.rows_of_each = cut_->outputs->whole();
    part.first_row = cut_->outputs->own().begin;
  }
  if (cut_ && cut_->inputs) part.first_column = cut_->inputs->own().begin;
  return {.bytes = {.blocks = weight, .nested = weight_nested}, .part = part};
}

void Linear::enable_adapter(bool on) {
  if (lora_) lora_->set_enabled(on);
}

void Linear::train(bool on) {
  if (lora_) lora_->forget_norms();
  torch::nn::Module::train(on);
}

Embedding::Embedding(int64_t count, int64_t width, int64_t padding_index) : padding_index_(padding_index) {
  weight = register_parameter("weight", declared_parameter({count, width}));
}

Embedding::Embedding(int64_t count, int64_t width, int64_t padding_index, const TensorAxis& axis)
    : Embedding(count, width, padding_index) {
  axis_ = shared_over(axis);
}

at::Tensor Embedding::forward(const at::Tensor& ids) const {
  return embedded(ids, axis_ ? axis_->shared_parameter(weight) : weight, padding_index_, CutVocabulary{});
}

LayerNorm::LayerNorm(int64_t width, double eps) : width_(width), eps_(eps) {
  weight = register_parameter("weight", declared_parameter({width}));
  bias = register_parameter("bias", declared_parameter({width}));
}

LayerNorm::LayerNorm(int64_t width, double eps, const TensorAxis& axis) : LayerNorm(width, eps) {
  axis_ = shared_over(axis);
}

at::Tensor LayerNorm::forward(const at::Tensor& input) const {
  if (!axis_) return at::layer_norm(input, {width_}, weight, bias, eps_);
  const at::Tensor both = axis_->shared_parameter(at::cat({weight, bias}));  // whose gradients go in one message
  return at::layer_norm(input, {width_}, both.narrow(0, 0, width_), both.narrow(0, width_, width_), eps_);
}

RmsNorm::RmsNorm(int64_t width, double eps, bool around_one, const TensorAxis& axis) : RmsNorm(width, eps, around_one) {
  axis_ = shared_over(axis);
}

RmsNorm::RmsNorm(int64_t width, double eps, bool around_one) : eps_(eps), around_one_(around_one) {
  weight = register_parameter("weight", declared_parameter({width}));
}

at::Tensor RmsNorm::forward(const at::Tensor& input) const {
  return RmsNormFunction::apply(input, axis_ ? axis_->shared_parameter(weight) : weight, eps_, around_one_);
}

void materialize(torch::nn::Module& model, const std::function<void(const std::string& name, at::Tensor value)>& fill,
                 at::ScalarType dtype) {
  const at::NoGradGuard no_grad;
  std::unordered_set<const at::TensorImpl*> done;
  for (auto& item : model.named_parameters()) {
    at::Tensor& parameter = item.value();
    if (!done.insert(parameter.unsafeGetTensorImpl()).second) continue;
    if (parameter.numel() == 0 || parameter.storage().nbytes() > 0) continue;
    at::Tensor value = at::empty(parameter.sizes(), parameter.options().dtype(dtype).requires_grad(false));
    fill(item.key(), value);
    parameter.set_data(value);
  }
}

}  // namespace tessera::nn
