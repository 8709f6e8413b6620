#include "tessera/nn/tensor_axis.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/comm/group.h"
#include "tessera/nn/layers.h"
#include "tessera/nn/target_loss.h"
#include "tests/support/spawn_ranks.h"

namespace tessera::nn::tensor_axis_test {
namespace {

using layout::Range;
using test::spawn_ranks;
using testing::ElementsAre;

constexpr int64_t kWidth = 5, kFeatures = 7;  // divide by neither 2 nor 3

// To the rounding of fp32 sums: it is of the size of their terms, and an entry may be small where these cancel.
bool near(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<float>() <= 1e-6F * b.abs().max().item<float>();
}

// The part of `whole` along a dimension, as a parameter of its own.
at::Tensor part(const at::Tensor& whole, int dim, Range own) {
  return whole.detach().slice(dim, own.begin, own.end).clone().requires_grad_(true);
}

// What a parameter is a part of.
struct Part {
  at::Tensor whole;
  int dim;
  Range range;

  at::Tensor of(const at::Tensor& tensor) const { return tensor.slice(dim, range.begin, range.end); }
};

std::shared_ptr<Linear> materialized(const std::shared_ptr<Linear>& linear) {
  materialize(*linear, [](const std::string&, const at::Tensor& value) { value.zero_(); });
  return linear;
}

void a_cut_feed_forward_is_the_whole_one(const std::shared_ptr<comm::Group>& world) {
  at::manual_seed(5);
  const auto drawn = [](at::IntArrayRef shape) { return at::randn(shape).requires_grad_(true); };
  const at::Tensor x = drawn({4, kWidth}), up = drawn({kFeatures, kWidth}), up_bias = drawn({kFeatures});
  const at::Tensor down = drawn({kWidth, kFeatures}), down_bias = drawn({kWidth});
  const at::Tensor expected = at::linear(at::silu(at::linear(x, up, up_bias)), down, down_bias);
  expected.pow(2).sum().backward();

  const TensorAxis axis(world);
  const Cut cut = axis.cut(kFeatures, "features");
  const auto first =
      materialized(std::make_shared<Linear>(kWidth, kFeatures, true, LinearCut{.axis = axis, .outputs = cut}));
  const auto second =
      materialized(std::make_shared<Linear>(kFeatures, kWidth, true, LinearCut{.axis = axis, .inputs = cut}));
  const std::vector<std::pair<at::Tensor, Part>> parameters = {{first->weight, {up, 0, cut.own()}},
                                                               {first->bias, {up_bias, 0, cut.own()}},
                                                               {second->weight, {down, 1, cut.own()}},
                                                               {second->bias, {down_bias, 0, {0, kWidth}}}};
  for (const auto& [parameter, part] : parameters) parameter.data().copy_(part.of(part.whole));
  const at::Tensor input = x.detach().clone().requires_grad_(true);
  const at::Tensor y = second->forward(at::silu(first->forward(axis.into_parts(input))));
  y.pow(2).sum().backward();

  EXPECT_TRUE(near(y, expected));
  EXPECT_TRUE(near(input.grad(), x.grad()));
  for (const auto& [parameter, part] : parameters) EXPECT_TRUE(near(parameter.grad(), part.of(part.whole.grad())));
  const at::Tensor of_all = axis.of_all(input.grad());
  for (int rank = 0; rank < world->size(); ++rank) EXPECT_TRUE(of_all[rank].equal(input.grad()));
}

TEST(TensorAxis, AFeedForwardCutOverTwoRanksIsTheWholeOne) { spawn_ranks(2, a_cut_feed_forward_is_the_whole_one); }
TEST(TensorAxis, AFeedForwardCutOverThreeRanksIsTheWholeOne) { spawn_ranks(3, a_cut_feed_forward_is_the_whole_one); }

// Of a vocabulary that does not divide: its loss and log-probabilities, and their gradients.
void a_cut_vocabulary_gives_the_loss_of_the_whole_one(const std::shared_ptr<comm::Group>& world) {
  at::manual_seed(7);
  constexpr int64_t kWords = 11;
  const at::Tensor hidden = at::randn({2, 3, kWidth}).requires_grad_(true);
  const at::Tensor weight = at::randn({kWords, kWidth}).mul_(3).requires_grad_(true);
  const at::Tensor labels = at::tensor({0, 10, -100, 5, 6, 3}, at::kLong).view({2, 3});
  const TensorAxis axis(world);
  const CutVocabulary vocabulary{.axis = axis, .words = axis.cut(kWords, "words")};
  const Range own = vocabulary.words.own();
  const auto compare = [&](const auto& loss) {
    hidden.mutable_grad() = weight.mutable_grad() = at::Tensor();
    const at::Tensor expected = loss(hidden, weight, CutVocabulary{});
    (expected * at::arange(1, expected.numel() + 1).view_as(expected)).sum().backward();
    const at::Tensor input = hidden.detach().clone().requires_grad_(true), rows = part(weight, 0, own);
    const at::Tensor given = loss(axis.into_parts(input), rows, vocabulary);
    (given * at::arange(1, given.numel() + 1).view_as(given)).sum().backward();
    EXPECT_TRUE(near(given, expected)) << given << expected;
    EXPECT_TRUE(near(input.grad(), hidden.grad()));
    EXPECT_TRUE(near(rows.grad(), weight.grad().slice(0, own.begin, own.end)));
    const at::NoGradGuard no_grad;
    EXPECT_TRUE(near(loss(hidden, rows, vocabulary), expected));
  };
  compare([&](const at::Tensor& x, const at::Tensor& w, const CutVocabulary& cut) {
    return target_loss_sum(x, w, {}, labels, cut);
  });
  compare([&](const at::Tensor& x, const at::Tensor& w, const CutVocabulary& cut) {
    return target_log_probs(x, w, {}, labels, cut);
  });
  const at::Tensor logits = at::linear(hidden, weight).detach();
  EXPECT_TRUE(near(axis.joined(at::linear(hidden, part(weight, 0, own)), vocabulary.words), logits));
}

TEST(TensorAxis, AVocabularyCutOverTwoRanksGivesTheLossOfTheWholeOne) {
  spawn_ranks(2, a_cut_vocabulary_gives_the_loss_of_the_whole_one);
}
TEST(TensorAxis, AVocabularyCutOverThreeRanksGivesTheLossOfTheWholeOne) {
  spawn_ranks(3, a_cut_vocabulary_gives_the_loss_of_the_whole_one);
}

// A key head that two ranks hold gets the gradients of both.
TEST(TensorAxis, RanksThatShareAPartSumItsGradients) {
  spawn_ranks(4, [](const std::shared_ptr<comm::Group>& world) {
    const TensorAxis axis(world);
    const Cut key = axis.cut_heads(8, 2).key;
    const auto layer = materialized(std::make_shared<Linear>(1, 2, true, LinearCut{.axis = axis, .outputs = key}));
    layer->forward(at::full({1, 1}, static_cast<double>(world->rank() + 1))).sum().backward();
    const float sum = world->rank() < 2 ? 1 + 2 : 3 + 4;
    EXPECT_EQ(layer->weight.grad().item<float>(), sum);
    EXPECT_EQ(layer->bias.grad().item<float>(), 2);
    layout::ParamSpec spec;
    layer->specify("weight", spec);
    EXPECT_THAT(spec.shape, ElementsAre(2, 1));
    EXPECT_THAT(key.parts, ElementsAre(Range{0, 1}, Range{0, 1}, Range{1, 2}, Range{1, 2}));
    EXPECT_THAT(spec.shards.at(0).bounds, ElementsAre(0, 1, 2));
  });
}

// However much of it each rank uses.
TEST(TensorAxis, RandomNumbersOfPartsDifferAndThoseAfterThemDoNot) {
  spawn_ranks(2, [](const std::shared_ptr<comm::Group>& world) {
    const TensorAxis axis(world);
    at::manual_seed(3);
    const auto same_on_both = [&](const at::Tensor& own) {
      const at::Tensor all = axis.of_all(own);
      return all[0].equal(all[1]);
    };
    at::Tensor before;
    for (int time = 0; time < 2; ++time) {
      const at::Tensor of_part = [&] {
        const PartRandomness own(axis, /*on=*/true, at::kCPU);
        return at::rand({4 + world->rank()}).narrow(0, 0, 4).contiguous();
      }();
      EXPECT_FALSE(same_on_both(of_part));
      EXPECT_FALSE(before.defined() && before.equal(of_part));
      before = of_part;
      EXPECT_TRUE(same_on_both(at::rand({4})));
    }
    at::manual_seed(3);
    const at::Tensor plain = at::rand({4});
    at::manual_seed(3);
    const PartRandomness off(axis, /*on=*/false, at::kCPU);
    EXPECT_TRUE(at::rand({4}).equal(plain));
  });
}

TEST(TensorAxis, TheFirstRanksHaveOneMoreWhereItDoesNotDivide) {
  EXPECT_THAT(TensorAxis::of_size(3).cut(7, "features").parts, ElementsAre(Range{0, 3}, Range{3, 5}, Range{5, 7}));
}

TEST(TensorAxis, AttentionIsCutByWholeKeyHeadsOrWithinThem) {
  const auto heads = [](int ranks, int64_t query, int64_t key) {
    return TensorAxis::of_size(ranks).cut_heads(query, key);
  };
  EXPECT_THAT(heads(2, 12, 3).query.parts, ElementsAre(Range{0, 8}, Range{8, 12}));
  EXPECT_THAT(heads(2, 12, 3).key.parts, ElementsAre(Range{0, 2}, Range{2, 3}));
  EXPECT_THAT(heads(4, 14, 2).query.parts, ElementsAre(Range{0, 4}, Range{4, 7}, Range{7, 11}, Range{11, 14}));
  EXPECT_THAT(heads(4, 14, 2).key.parts, ElementsAre(Range{0, 1}, Range{0, 1}, Range{1, 2}, Range{1, 2}));
}

std::string refusal_of(const std::function<void()>& asked) {
  try {
    asked();
  } catch (const Error& error) {
    return error.report().what + "; " + error.report().fix;
  }
  return "nothing was refused";
}

TEST(TensorAxis, RefusesWhatDoesNotGoRoundAndNamesWhatDoes) {
  EXPECT_EQ(refusal_of([] { TensorAxis::of_size(3).cut(2, "words"); }),
            "2 words cannot be cut over 3 ranks; use at most 2 ranks");
  EXPECT_EQ(refusal_of([] { TensorAxis::of_size(3).cut_heads(8, 2); }),
            "8 attention heads of 2 key heads cannot be cut over 3 ranks; use at most 2 ranks, or 4, 6, 8");
  EXPECT_EQ(refusal_of([] { TensorAxis::of_size(8).cut_heads(4, 4); }),
            "4 attention heads of 4 key heads cannot be cut over 8 ranks; use at most 4 ranks");
}

}  // namespace
}  // namespace tessera::nn::tensor_axis_test
