#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/nn/layers.h"

namespace tessera::nn::tiled_linear_test {
namespace {

constexpr int64_t kIn = 30, kOut = 22;

at::Tensor wave(std::vector<int64_t> shape, double step) {
  int64_t numel = 1;
  for (const int64_t size : shape) numel *= size;
  return at::sin(at::arange(numel, at::kFloat) * step).view(shape);
}

void fill(Linear& linear) {
  materialize(linear,
              [](const std::string&, const at::Tensor& value) { value.copy_(wave(value.sizes().vec(), 0.37)); });
}

struct Splits {
  int64_t in, out;
  bool with_bias;
  int64_t out_features = kOut;
};

class TiledLinearCase : public testing::TestWithParam<Splits> {};

// Beside the Linear whose values it copied: outputs and all gradients, to the bit where only the outputs are split, and
// into tiles that BLAS computes as it does the whole.
TEST_P(TiledLinearCase, IsTheLinearThatItCopied) {
  const auto [in, out, with_bias, out_features] = GetParam();
  const bool same_bits = in == 1 && out_features / out % 64 == 0;
  Linear whole(kIn, out_features, with_bias);
  fill(whole);
  TiledLinear tiled(kIn, out_features, {.with_bias = with_bias, .in_splits = in, .out_splits = out});
  tiled.copy_params_from(whole);

  const at::Tensor x = wave({4, 5, kIn}, 0.71).requires_grad_(true);
  const at::Tensor x_tiled = x.detach().clone().requires_grad_(true);
  const at::Tensor y = whole.forward(x), y_tiled = tiled.forward(x_tiled);
  const at::Tensor gradient = wave({4, 5, out_features}, 0.13);
  y.backward(gradient);
  y_tiled.backward(gradient);

  const auto expect_near = [](const at::Tensor& got, const at::Tensor& want, double relative) {
    ASSERT_EQ(got.sizes(), want.sizes());
    EXPECT_LE((got - want).abs().max().item<double>(), relative * want.abs().max().item<double>());
  };
  expect_near(y_tiled.detach(), y.detach(), same_bits ? 0 : 1e-6);
  // A sum over the rows of tiles, whose terms cancel: its rounding goes with the terms.
  const double terms = at::matmul(gradient.abs(), whole.weight.detach().abs()).max().item<double>();
  EXPECT_LE((x_tiled.grad() - x.grad()).abs().max().item<double>(), 1e-6 * terms);
  const auto grads = tiled.named_parameters();
  std::vector<at::Tensor> rows, biases;
  for (int64_t row = 0; row < out; ++row) {
    std::vector<at::Tensor> columns;
    for (int64_t column = 0; column < in; ++column) {
      const std::string tile = "linears." + std::to_string(row) + "." + std::to_string(column);
      columns.push_back(grads[tile + ".weight"].grad());
      if (with_bias && column + 1 == in) biases.push_back(grads[tile + ".bias"].grad());
    }
    rows.push_back(at::cat(columns, 1));
  }
  expect_near(at::cat(rows, 0), whole.weight.grad(), same_bits ? 0 : 1e-6);
  if (with_bias) expect_near(at::cat(biases), whole.bias.grad(), same_bits ? 0 : 1e-6);
}

INSTANTIATE_TEST_SUITE_P(Splits, TiledLinearCase,
                         testing::Values(Splits{1, 1, true, 64}, Splits{1, 2, true, 128}, Splits{1, 4, true, 512},
                                         Splits{1, 3, false, 576}, Splits{1, 1, true}, Splits{1, 2, true},
                                         Splits{1, 4, true}, Splits{1, 4, false}, Splits{2, 1, true},
                                         Splits{4, 1, false}, Splits{3, 4, true}, Splits{7, 5, true},
                                         Splits{kIn, kOut, true}));

// DeepSpeed 0.19.8's partition_uniform(30, 4) and (22, 4) are 0 8 16 23 30 and 0 6 12 17 22.
TEST(TiledLinear, CutsAsDeepSpeedDoes) {
  const TiledLinear tiled(kIn, kOut, {.in_splits = 4, .out_splits = 4});
  const auto parameters = tiled.named_parameters();
  const std::vector<int64_t> columns = {8, 8, 7, 7}, rows = {6, 6, 5, 5};
  for (size_t row = 0; row < 4; ++row) {
    for (size_t column = 0; column < 4; ++column) {
      const std::string tile = "linears." + std::to_string(row) + "." + std::to_string(column);
      EXPECT_EQ(parameters[tile + ".weight"].sizes(), (std::vector<int64_t>{rows[row], columns[column]}));
      EXPECT_EQ(parameters.contains(tile + ".bias"), column == 3);
    }
  }
}

TEST(TiledLinear, TakesSplitInputsAndLeavesOutputsSplit) {
  Linear whole(kIn, kOut);
  fill(whole);
  TiledLinear tiled(kIn, kOut, {.in_splits = 3, .out_splits = 2});
  tiled.copy_params_from(whole);
  const at::Tensor x = wave({6, kIn}, 0.71);
  const auto outputs = tiled.forward_split({x.narrow(1, 0, 10), x.narrow(1, 10, 10), x.narrow(1, 20, 10)});
  ASSERT_EQ(outputs.size(), 2U);
  EXPECT_TRUE(at::equal(outputs[0], tiled.forward(x).narrow(1, 0, 11)));
  EXPECT_TRUE(at::equal(outputs[1], tiled.forward(x).narrow(1, 11, 11)));
}

// The layer is one tensor larger than a tile, but each tile announces itself.
TEST(TiledLinear, AnnouncesOneTileAtATime) {
  struct Log : UnitObserver {
    void before_forward(size_t module, const std::vector<at::Tensor>&) override {
      events.push_back("b" + text(module));
    }
    void after_forward(size_t module, const std::vector<at::Tensor>&) override { events.push_back("a" + text(module)); }
    static std::string text(size_t module) { return std::to_string(module); }
    std::vector<std::string> events;
  };
  Linear whole(kIn, kOut);
  fill(whole);
  TiledLinear tiled(kIn, kOut, {.in_splits = 2, .out_splits = 2});
  tiled.copy_params_from(whole);
  Log log;
  size_t number = 0;
  for (const auto& module : tiled.modules(/*include_self=*/false)) {
    if (auto* tile = dynamic_cast<UnitModuleBase*>(module.get())) tile->set_observer(&log, number++);
  }
  EXPECT_EQ(number, 4U);
  tiled.forward(wave({6, kIn}, 0.71));
  EXPECT_THAT(log.events, testing::ElementsAre("b0", "a0", "b1", "a1", "b2", "a2", "b3", "a3"));
}

TEST(TiledLinear, RefusesWhatDoesNotFit) {
  const auto message = [](const auto& call) -> std::string {
    try {
      call();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(message([] { TiledLinear(kIn, kOut, {.in_splits = 0}); }), testing::HasSubstr("in_splits is 0"));
  EXPECT_THAT(message([] { TiledLinear(kIn, kOut, {.out_splits = kOut + 1}); }),
              testing::HasSubstr("out_splits is 23"));
  TiledLinear tiled(kIn, kOut, {.in_splits = 2});
  const at::Tensor x = wave({6, kIn}, 0.71);
  EXPECT_THAT(message([&] { tiled.forward_split({x}); }), testing::HasSubstr("1 input given for in_splits of 2"));
  EXPECT_THAT(message([&] { tiled.copy_params_from(Linear(kOut, kIn)); }), testing::HasSubstr("weight"));
  EXPECT_THAT(message([&] { tiled.copy_params_from(Linear(kIn, kOut, false)); }), testing::HasSubstr("bias"));
}

}  // namespace
}  // namespace tessera::nn::tiled_linear_test
