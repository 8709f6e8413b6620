#include "tessera/nn/own_tokens.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tessera/comm/group.h"
#include "tessera/layout/range.h"
#include "tessera/nn/layers.h"
#include "tessera/nn/tensor_axis.h"
#include "tests/support/spawn_ranks.h"

namespace tessera::nn::own_tokens_test {
namespace {

using layout::Range;
using test::spawn_ranks;

constexpr int64_t kWidth = 5, kFeatures = 7;
constexpr TokenShape kTokens{.batch = 2, .length = 3};  // over 4 ranks: 2 each, and none for the last

bool near(const at::Tensor& a, const at::Tensor& b) { return at::allclose(a, b, 1e-5, 1e-5); }

// Of the tokens in order, those that a rank has.
Range own_range(const comm::Group& world) {
  const int64_t rows = layout::ceil_div(kTokens.count(), world.size());
  const auto place = [&](int64_t rank) { return std::min(rank * rows, kTokens.count()); };
  return {place(world.rank()), place(world.rank() + 1)};
}

// Those rows of what is of all tokens.
at::Tensor rows_in(const at::Tensor& of_all, const Range& own) {
  return of_all.reshape({kTokens.count(), kWidth}).slice(0, own.begin, own.end);
}

at::Tensor filled_up(const at::Tensor& rows, const comm::Group& world) {
  const int64_t missing = layout::ceil_div(kTokens.count(), world.size()) - rows.size(0);
  return at::constant_pad_nd(rows, {0, 0, 0, missing}).detach().clone().requires_grad_(true);
}

template <class Layer>
std::shared_ptr<Layer> filled(const std::shared_ptr<Layer>& layer, const at::Tensor& weight, const at::Tensor& bias) {
  materialize(*layer,
              [&](const std::string& name, at::Tensor value) { value.copy_(name == "weight" ? weight : bias); });
  return layer;
}

// h + down(silu(up(norm(h)))), with a norm before the loss that is of own tokens alone.
void a_block_whose_norms_have_own_tokens_is_that_of_one_process(const std::shared_ptr<comm::Group>& world) {
  at::manual_seed(5);
  const auto drawn = [](at::IntArrayRef shape) { return at::randn(shape).requires_grad_(true); };
  const at::Tensor h = drawn({kTokens.batch, kTokens.length, kWidth});
  const at::Tensor gain = drawn({kWidth}), shift = drawn({kWidth}), last_gain = drawn({kWidth});
  const at::Tensor up = drawn({kFeatures, kWidth}), up_bias = drawn({kFeatures});
  const at::Tensor down = drawn({kWidth, kFeatures}), down_bias = drawn({kWidth});
  const at::Tensor factors = at::randn({kTokens.batch, kTokens.length, kWidth});
  const at::Tensor inner =
      at::linear(at::silu(at::linear(at::layer_norm(h, {kWidth}, gain, shift), up, up_bias)), down);
  const at::Tensor sum = h + inner + down_bias;
  const at::Tensor expected = sum * (sum.square().mean(-1, /*keepdim=*/true) + 1e-5).rsqrt() * last_gain;
  (expected * factors).sum().backward();

  const TensorAxis axis(world);
  const Cut cut = axis.cut(kFeatures, "features");
  const Range part = cut.own(), own = own_range(*world);
  const auto norm = filled(std::make_shared<LayerNorm>(kWidth, 1e-5, axis), gain, shift);
  const auto first = filled(std::make_shared<Linear>(kWidth, kFeatures, true, LinearCut{.axis = axis, .outputs = cut}),
                            up.slice(0, part.begin, part.end), up_bias.slice(0, part.begin, part.end));
  const auto second =
      filled(std::make_shared<Linear>(kFeatures, kWidth, true,
                                      LinearCut{.axis = axis, .inputs = cut, .sum = LinearCut::Sum::kOwnTokens}),
             down.slice(1, part.begin, part.end), down_bias);
  const auto last = filled(std::make_shared<RmsNorm>(kWidth, 1e-5, /*around_one=*/false, axis), last_gain, {});
  const at::Tensor own_h = filled_up(rows_in(h, own), *world);
  const at::Tensor entering = into_cut_layers(axis, norm->forward(own_h), kTokens);
  EXPECT_EQ(entering.sizes(), h.sizes());
  const at::Tensor own_sum = own_h + second->forward(at::silu(first->forward(entering)));
  EXPECT_EQ(own_sum.size(0), layout::ceil_div(kTokens.count(), world->size()));
  const at::Tensor given = all_tokens(axis, last->forward(own_sum), kTokens);
  (given * factors).sum().backward();

  EXPECT_TRUE(near(given, expected));
  EXPECT_TRUE(near(own_h.grad().narrow(0, 0, own.numel()), rows_in(h.grad(), own)));
  EXPECT_TRUE(near(norm->weight.grad(), gain.grad()));
  EXPECT_TRUE(near(norm->bias.grad(), shift.grad()));
  EXPECT_TRUE(near(last->weight.grad(), last_gain.grad()));
  EXPECT_TRUE(near(first->weight.grad(), up.grad().slice(0, part.begin, part.end)));
  EXPECT_TRUE(near(first->bias.grad(), up_bias.grad().slice(0, part.begin, part.end)));
  EXPECT_TRUE(near(second->weight.grad(), down.grad().slice(1, part.begin, part.end)));
  EXPECT_TRUE(near(second->bias.grad(), down_bias.grad()));
  const at::Tensor of_all = axis.of_all(norm->weight.grad());
  for (int rank = 0; rank < world->size(); ++rank) EXPECT_TRUE(of_all[rank].equal(norm->weight.grad()));
}

TEST(OwnTokens, ABlockOverTwoRanksIsThatOfOneProcess) {
  spawn_ranks(2, a_block_whose_norms_have_own_tokens_is_that_of_one_process);
}
TEST(OwnTokens, ABlockOverFourRanksOneOfWhichHasNoTokenIsThatOfOneProcess) {
  spawn_ranks(4, a_block_whose_norms_have_own_tokens_is_that_of_one_process);
}

// Of ids that are the same for each row of the batch; what fills up the last rank's has no gradient.
TEST(OwnTokens, EmbeddingsOfOwnTokensHaveTheGradientsOfAll) {
  spawn_ranks(4, [](const std::shared_ptr<comm::Group>& world) {
    at::manual_seed(3);
    const at::Tensor weight = at::randn({4, kWidth}).requires_grad_(true);
    const at::Tensor ids = at::tensor({3, 1, 2}, at::kLong).unsqueeze(0);
    const at::Tensor factors = at::randn({kTokens.batch, kTokens.length, kWidth});
    (at::embedding(weight, ids) * factors).sum().backward();
    const TensorAxis axis(world);
    const auto table = filled(std::make_shared<Embedding>(4, kWidth, -1, axis), weight, {});
    const at::Tensor rows = table->forward(own_tokens(axis, ids, kTokens));
    (all_tokens(axis, rows, kTokens) * factors).sum().backward();
    EXPECT_TRUE(near(table->weight.grad(), weight.grad()));
    EXPECT_TRUE(table->weight.grad()[0].eq(0).all().item<bool>());
  });
}

TEST(OwnTokens, DropoutOfOwnTokensIsThatOfOneProcessAndLeavesRandomNumbersAlike) {
  spawn_ranks(4, [](const std::shared_ptr<comm::Group>& world) {
    const TensorAxis axis(world);
    const at::Tensor x = at::ones({kTokens.batch, kTokens.length, kWidth});
    at::manual_seed(11);
    const at::Tensor expected = at::dropout(x, 0.4, /*train=*/true), next = at::rand({3});
    at::manual_seed(11);
    const at::Tensor own = filled_up(rows_in(x, own_range(*world)), *world).detach();
    const at::Tensor dropped = dropout_of_own(axis, own, 0.4, /*training=*/true, kTokens);
    EXPECT_TRUE(at::rand({3}).equal(next));
    EXPECT_TRUE(all_tokens(axis, dropped, kTokens).equal(expected));
    EXPECT_FALSE(expected.equal(x));
    EXPECT_TRUE(dropout_of_own(axis, own, 0.4, /*training=*/false, kTokens).equal(own));
  });
}

// What all ranks compute alike of what has come into the cut layers counts once in its gradient.
TEST(OwnTokens, WhatRanksComputeAlikeCountsOnce) {
  spawn_ranks(2, [](const std::shared_ptr<comm::Group>& world) {
    const TensorAxis axis(world);
    const at::Tensor own = at::ones({3, kWidth}).requires_grad_(true);
    const at::Tensor alike = into_cut_layers(axis, own, kTokens).sum() * 3;
    axis.counted_once(alike).backward();
    EXPECT_TRUE(own.grad().eq(3).all().item<bool>());
  });
}

}  // namespace
}  // namespace tessera::nn::own_tokens_test
