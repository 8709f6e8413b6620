#include "tessera/nn/lora.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tessera/nn/nf4_product.h"

namespace tessera::nn::lora_test {
namespace {

constexpr LoraOptions kDora{.rank = 3, .alpha = 6, .dora = true};

// A layer (out 5, in 7) with an adapter, all of random numbers.
std::shared_ptr<Linear> adapted_layer(const LoraOptions& options, bool with_bias = true) {
  at::manual_seed(5);
  auto layer = std::make_shared<Linear>(7, 5, with_bias);
  layer->adapt(options);
  materialize(*layer, [](const std::string& name, at::Tensor value) {
    if (name == kLoraMagnitude) {
      value.uniform_(0.5, 2);
    } else {
      value.normal_();
    }
  });
  return layer;
}

at::Tensor parameter(const Linear& layer, const char* name) { return layer.named_parameters()[name]; }

// Liu et al. 2024, equation 5, whose norms are constants (section 4.3).
at::Tensor formula(const Linear& layer, const at::Tensor& input, double scale) {
  const at::Tensor sum =
      layer.weight + at::mm(parameter(layer, "lora_B.weight"), parameter(layer, "lora_A.weight")) * scale;
  const at::Tensor norms = at::linalg_vector_norm(sum, 2, at::IntArrayRef{1}).detach();
  const at::Tensor turned = sum * (parameter(layer, kLoraMagnitude) / norms).unsqueeze(1);
  return layer.bias.defined() ? at::linear(input, turned, layer.bias) : at::linear(input, turned);
}

TEST(Dora, IsItsFormulaAndSoAreItsGradients) {
  for (const bool with_bias : {true, false}) {
    const auto layer = adapted_layer(kDora, with_bias);
    layer->weight.requires_grad_(false);
    const auto gradients = [&](const std::function<at::Tensor(const at::Tensor&)>& forward) {
      for (auto& item : layer->named_parameters()) item.value().mutable_grad().reset();
      at::Tensor input = at::sin(at::arange(28, at::kFloat)).view({2, 2, 7}).requires_grad_(true);
      const at::Tensor output = forward(input);
      (output * at::cos(at::arange(20, at::kFloat)).view({2, 2, 5})).sum().backward();
      std::vector<at::Tensor> all{output.detach(), input.grad()};
      for (const char* const name : {"lora_A.weight", "lora_B.weight", kLoraMagnitude})
        all.push_back(parameter(*layer, name).grad());
      return all;
    };
    const auto want = gradients([&](const at::Tensor& input) { return formula(*layer, input, 2); });
    const auto got = gradients([&](const at::Tensor& input) { return layer->forward(input); });
    for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(at::allclose(got[i], want[i], 1e-5, 1e-5)) << i;
  }
}

// PEFT 0.21, DoraLinearVariant.forward: what is dropped from the input of the adapter's part, of W's product in it too.
TEST(Dora, DropsOfTheInputOfWhatItAdds) {
  LoraOptions options = kDora;
  options.dropout = 0.5;
  const auto layer = adapted_layer(options);
  const at::Tensor input = at::sin(at::arange(28, at::kFloat)).view({4, 7});
  at::manual_seed(9);
  const at::Tensor got = layer->forward(input);
  at::manual_seed(9);
  const at::Tensor dropped = at::dropout(input, 0.5, true);
  ASSERT_FALSE(at::equal(dropped, input));
  const at::Tensor bias = layer->bias;
  const at::Tensor want =
      at::linear(input, layer->weight, bias) + (formula(*layer, dropped, 2) - at::linear(dropped, layer->weight, bias));
  EXPECT_TRUE(at::allclose(got, want, 1e-5, 1e-5));
  layer->eval();
  EXPECT_TRUE(at::allclose(layer->forward(input), formula(*layer, input, 2), 1e-5, 1e-5));
}

TEST(Dora, KeepsNormsOnlyWhileNothingIsTrained) {
  const auto layer = adapted_layer(kDora);
  const at::Tensor input = at::sin(at::arange(28, at::kFloat)).view({4, 7});
  const at::NoGradGuard no_grad;
  for (int i = 0; i < 2; ++i) {
    layer->eval();
    for (int again = 0; again < 2; ++again)
      EXPECT_TRUE(at::allclose(layer->forward(input), formula(*layer, input, 2), 1e-5, 1e-5));
    layer->train();
    parameter(*layer, "lora_B.weight").mul_(3);
    EXPECT_TRUE(at::allclose(layer->forward(input), formula(*layer, input, 2), 1e-5, 1e-5));
  }
}

TEST(Dora, NormsOfManyRowsAreTakenInPieces) {
  at::manual_seed(7);
  const at::Tensor weight = at::randn({3000, 3000}), a = at::randn({2, 3000}), b = at::randn({3000, 2});
  const at::Tensor want = at::linalg_vector_norm(weight + at::mm(b, a) * 0.5, 2, at::IntArrayRef{1});
  EXPECT_TRUE(at::allclose(adapted_row_norms(weight, a, b, 0.5), want, 1e-5, 0));
  EXPECT_TRUE(at::allclose(adapted_row_norms(weight.t(), b.t(), a.t(), 0.5),
                           at::linalg_vector_norm(weight.t() + at::mm(a.t(), b.t()) * 0.5, 2, at::IntArrayRef{1}), 1e-5,
                           0));
}

// QLoRA's base layer (Dettmers et al. 2023): all that is computed with W is computed with what NF4 has kept of it.
TEST(Dora, OfAQuantizedLayerIsThatOfWhatItKeeps) {
  for (const double dropout : {0.0, 0.5}) {
    LoraOptions options = kDora;
    options.dropout = dropout;
    const auto plain = adapted_layer(options);
    const kernels::Nf4 bytes = nn::quantized(plain->weight.detach());
    const at::Tensor kept = dequantized({.bytes = bytes, .part = kernels::Nf4Part::whole(5, 7)}, at::kFloat);
    ASSERT_FALSE(at::allclose(kept, plain->weight, 1e-3, 1e-3));
    const auto quantized = std::make_shared<Linear>(7, 5);
    quantized->adapt(options);
    quantized->quantize();
    {
      const at::NoGradGuard no_grad;
      for (auto& item : quantized->named_parameters()) {
        item.value().set_data(item.key() == "weight"        ? bytes.blocks
                              : item.key() == kNestedScales ? bytes.nested
                                                            : parameter(*plain, item.key().c_str()).detach().clone());
      }
      plain->weight.copy_(kept);
    }
    for (const auto& layer : {plain, quantized}) {
      layer->named_parameters()["weight"].requires_grad_(false);
      layer->named_parameters()["bias"].requires_grad_(false);
    }
    const auto results = [](Linear& layer) {
      at::manual_seed(9);
      at::Tensor input = at::sin(at::arange(28, at::kFloat)).view({2, 2, 7}).requires_grad_(true);
      const at::Tensor output = layer.forward(input);
      (output * at::cos(at::arange(20, at::kFloat)).view({2, 2, 5})).sum().backward();
      std::vector<at::Tensor> all{output.detach(), input.grad()};
      for (const char* const name : {"lora_A.weight", "lora_B.weight", kLoraMagnitude})
        all.push_back(parameter(layer, name).grad());
      return all;
    };
    const auto want = results(*plain), got = results(*quantized);
    for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(at::allclose(got[i], want[i], 1e-5, 1e-5)) << dropout << i;
  }
}

TEST(Lora, IsTheLayerAloneWhereItIsOff) {
  for (const LoraOptions& options : {kDora, LoraOptions{.rank = 3, .alpha = 6}}) {
    const auto layer = adapted_layer(options);
    const at::Tensor input = at::sin(at::arange(28, at::kFloat)).view({4, 7});
    const at::Tensor alone = at::linear(input, layer->weight, layer->bias);
    EXPECT_FALSE(at::allclose(layer->forward(input), alone, 1e-2, 1e-2));
    layer->enable_adapter(false);
    EXPECT_TRUE(at::equal(layer->forward(input), alone));
    layer->enable_adapter(true);
    EXPECT_FALSE(at::allclose(layer->forward(input), alone, 1e-2, 1e-2));
  }
}

}  // namespace
}  // namespace tessera::nn::lora_test
