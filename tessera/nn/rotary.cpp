#include "tessera/nn/rotary.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tessera::nn {
namespace {

using Scaling = RotaryOptions::Scaling;

at::Tensor exponents(int64_t width) { return at::arange(0, width, 2, at::kFloat) / width; }

// theta^(2 i / width) for each pair i: by how many positions it turns one radian.
at::Tensor positions_a_radian(const RotaryOptions& options) { return at::pow(options.theta, exponents(options.width)); }

// In fp32, whose rounding thousands of positions multiply.
at::Tensor dynamic_theta(const RotaryOptions& options, int64_t length) {
  const at::Tensor reached = at::scalar_tensor(std::max(length, options.max_positions), at::kFloat);
  const at::Tensor grown = options.factor * reached / options.max_positions - (options.factor - 1);
  const auto width = static_cast<double>(options.width);
  return options.theta * at::pow(grown, width / (width - 2));
}

at::Tensor yarn_frequencies(const RotaryOptions& options) {
  const auto width = static_cast<double>(options.width);
  const auto pair_of = [&](double rotations) {
    return width * std::log(static_cast<double>(options.original_positions) / (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(options.theta));
  };
  double low = pair_of(options.beta_fast), high = pair_of(options.beta_slow);
  if (options.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, width - 1);
  if (low == high) high += 0.001;
  const at::Tensor kept = 1 - at::clamp((at::arange(options.width / 2, at::kFloat) - low) / (high - low), 0, 1);
  const at::Tensor trained = positions_a_radian(options);
  return (options.factor * trained).reciprocal() * (1 - kept) + trained.reciprocal() * kept;
}

at::Tensor llama3_frequencies(const RotaryOptions& options) {
  const auto original = static_cast<double>(options.original_positions);
  const at::Tensor trained = positions_a_radian(options).reciprocal();
  const at::Tensor wavelengths = trained.reciprocal() * (2 * std::numbers::pi);
  const at::Tensor blend =
      (wavelengths.reciprocal() * original - options.low_frequency) / (options.high_frequency - options.low_frequency);
  const at::Tensor between = (1 - blend) * trained / options.factor + blend * trained;
  return at::where(wavelengths > original / options.low_frequency, trained / options.factor,
                   at::where(wavelengths < original / options.high_frequency, trained, between));
}

double yarn_magnitude(double factor, double scale) { return factor <= 1 ? 1 : 0.1 * scale * std::log(factor) + 1; }

double attention_factor_of(const RotaryOptions& options) {
  if (options.attention_factor > 0) return options.attention_factor;
  if (options.scaling == Scaling::kYarn) {
    const bool both = options.mscale != 0 && options.mscale_all_dim != 0;
    return both
               ? yarn_magnitude(options.factor, options.mscale) / yarn_magnitude(options.factor, options.mscale_all_dim)
               : yarn_magnitude(options.factor, 1);
  }
  if (options.scaling == Scaling::kLongrope && options.factor > 1) {
    return std::sqrt(1 + std::log(options.factor) / std::log(static_cast<double>(options.original_positions)));
  }
  return 1;
}

at::Tensor frequencies_of(const RotaryOptions& options, int64_t length) {
  switch (options.scaling) {
    case Scaling::kYarn:
      return yarn_frequencies(options);
    case Scaling::kLlama3:
      return llama3_frequencies(options);
    case Scaling::kLongrope: {
      const auto& factors = length > options.original_positions ? options.long_factors : options.short_factors;
      return (at::tensor(factors).to(at::kFloat) * positions_a_radian(options)).reciprocal();
    }
    case Scaling::kDynamic:
      return at::pow(dynamic_theta(options, length), exponents(options.width)).reciprocal();
    case Scaling::kLinear:
      return positions_a_radian(options).reciprocal() / options.factor;
    case Scaling::kNone:
      break;
  }
  return positions_a_radian(options).reciprocal();
}

bool depends_on_length(Scaling scaling) { return scaling == Scaling::kDynamic || scaling == Scaling::kLongrope; }

// The pairs' first and second features, turned by the table's angles.
at::Tensor turned(const at::Tensor& input, const at::Tensor& cosine, const at::Tensor& sine) {
  const int64_t half = cosine.size(-1);
  const at::Tensor wide = input.to(at::kFloat);
  const at::Tensor first = wide.narrow(-1, 0, half), second = wide.narrow(-1, half, half);
  std::vector<at::Tensor> parts{first * cosine - second * sine, second * cosine + first * sine};
  if (input.size(-1) > 2 * half) parts.push_back(wide.narrow(-1, 2 * half, input.size(-1) - 2 * half));
  return at::cat(parts, -1).to(input.scalar_type());
}

// Its gradient turns back, so nothing of the input is kept.
class Turn : public torch::autograd::Function<Turn> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& cosine, const at::Tensor& sine) {
    context->save_for_backward({cosine, sine});
    return turned(input, cosine, sine);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    const auto saved = context->get_saved_variables();
    // The norm of the table need not be 1 (attention_factor), which the transpose of a rotation keeps.
    return {turned(grads[0], saved[0], saved[1].neg()), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

Rotary::Rotary(RotaryOptions options) : options_(std::move(options)), attention_factor_(attention_factor_of(options_)) {
  if (!depends_on_length(options_.scaling)) fixed_ = frequencies_of(options_, 0);
}

at::Tensor Rotary::frequencies(int64_t length) const {
  return fixed_.defined() ? fixed_ : frequencies_of(options_, length);
}

bool Rotary::turns_alike(int64_t one, int64_t other) const {
  return fixed_.defined() || at::equal(frequencies(one), frequencies(other));
}

Rotary::Table Rotary::table(const at::Tensor& positions) const {
  const int64_t length = fixed_.defined() ? 0 : positions.max().item<int64_t>() + 1;
  const at::Tensor angles = positions.to(at::kFloat).unsqueeze(-1) * frequencies(length).to(positions.device());
  return {.cosine = (angles.cos() * attention_factor_).unsqueeze(2),
          .sine = (angles.sin() * attention_factor_).unsqueeze(2)};
}

at::Tensor rotate(const at::Tensor& input, const Rotary::Table& table) {
  return Turn::apply(input, table.cosine, table.sine);
}

}  // namespace tessera::nn
