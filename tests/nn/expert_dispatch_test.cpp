#include "tessera/nn/expert_dispatch.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "tessera/base/error.h"
#include "tessera/comm/group.h"
#include "tests/support/spawn_ranks.h"

namespace tessera::nn::expert_dispatch_test {
namespace {

using test::spawn_ranks;
using testing::HasSubstr;

constexpr int64_t kWidth = 5;

// Of all ranks: a matrix for each expert, and the tokens and their choice for each rank.
struct Mixture {
  Mixture(int64_t count, int64_t each, const std::vector<int64_t>& tokens_of_ranks) : experts(count) {
    at::manual_seed(5);
    for (int64_t expert = 0; expert < count; ++expert) matrices.push_back(at::randn({kWidth, kWidth}));
    for (const int64_t count_of_rank : tokens_of_ranks) {
      tokens.push_back(at::randn({count_of_rank, kWidth}));
      logits.push_back(at::randn({count_of_rank, count}));
      weights_of_loss.push_back(at::randn({count_of_rank, kWidth}));
    }
    options = {.experts = count, .per_token = each, .sums_to_one = true};
  }

  int64_t experts;
  RouterOptions options;
  std::vector<at::Tensor> matrices, tokens, logits, weights_of_loss;
};

at::Tensor leaf(const at::Tensor& values) { return values.detach().clone().requires_grad_(true); }

// Token by token, as the formula says: what leaves on each rank, and the gradients of the loss of all.
struct Expected {
  explicit Expected(const Mixture& mixture) {
    for (const at::Tensor& matrix : mixture.matrices) matrices.push_back(leaf(matrix));
    at::Tensor loss = at::zeros({});
    for (size_t rank = 0; rank < mixture.tokens.size(); ++rank) {
      tokens.push_back(leaf(mixture.tokens[rank]));
      logits.push_back(leaf(mixture.logits[rank]));
      const auto [scores, chosen] = at::topk(at::softmax(logits[rank], -1), mixture.options.per_token, -1);
      std::vector<at::Tensor> rows;
      for (int64_t token = 0; token < tokens[rank].size(0); ++token) {
        at::Tensor row = at::zeros({kWidth});
        for (int64_t k = 0; k < mixture.options.per_token; ++k) {
          const auto expert = static_cast<size_t>(chosen[token][k].item<int64_t>());
          row = row + scores[token][k] / scores[token].sum() * at::mv(matrices[expert], tokens[rank][token]).tanh();
        }
        rows.push_back(row);
      }
      results.push_back(rows.empty() ? at::zeros({0, kWidth}) : at::stack(rows));
      loss = loss + (results[rank] * mixture.weights_of_loss[rank]).sum();
    }
    loss.backward();
  }

  std::vector<at::Tensor> matrices, tokens, logits, results;
};

// Undefined where nothing reached it.
at::Tensor grad_of(const at::Tensor& leaf) { return leaf.grad().defined() ? leaf.grad() : at::zeros_like(leaf); }

bool alike(const at::Tensor& one, const at::Tensor& other) { return at::allclose(one, other, 1e-5, 1e-6); }

void is_as_the_formula_says(const std::shared_ptr<comm::Group>& world, const Mixture& mixture) {
  const Expected expected(mixture);
  const ExpertAxis axis(world);
  const layout::Range own = axis.own(mixture.experts);
  const auto rank = static_cast<size_t>(world->rank());
  std::vector<at::Tensor> matrices;
  for (int64_t expert = own.begin; expert < own.end; ++expert) {
    matrices.push_back(leaf(mixture.matrices[static_cast<size_t>(expert)]));
  }
  const at::Tensor tokens = leaf(mixture.tokens[rank]), logits = leaf(mixture.logits[rank]);
  int64_t seen = 0;
  const auto run = [&](int64_t expert, const at::Tensor& rows) {
    seen += rows.size(0);
    return at::matmul(rows, matrices[static_cast<size_t>(expert)].t()).tanh();
  };
  const at::Tensor result = through_experts(tokens, route(logits, mixture.options), mixture.experts, axis, run);
  EXPECT_TRUE(alike(result, expected.results[rank]));
  (result * mixture.weights_of_loss[rank]).sum().backward();
  EXPECT_TRUE(alike(tokens.grad(), grad_of(expected.tokens[rank])));
  EXPECT_TRUE(alike(logits.grad(), grad_of(expected.logits[rank])));
  for (size_t expert = 0; expert < matrices.size(); ++expert) {
    ASSERT_TRUE(matrices[expert].grad().defined());
    EXPECT_TRUE(alike(matrices[expert].grad(), grad_of(expected.matrices[static_cast<size_t>(own.begin) + expert])));
  }
  EXPECT_GT(seen, 0);
}

TEST(ExpertDispatch, OneRankDoesWhatTheFormulaSays) {
  for (const int64_t each : {1, 2, 4}) is_as_the_formula_says(comm::Group::alone(), Mixture(4, each, {11}));
}

TEST(ExpertDispatch, RanksDoWhatOneWouldDoWithAllTokens) {
  const Mixture even(6, 2, {8, 8, 8}), uneven(3, 1, {7, 1, 12});
  for (const Mixture* const mixture : {&even, &uneven}) {
    spawn_ranks(3, [&](const auto& world) { is_as_the_formula_says(world, *mixture); });
  }
}

TEST(ExpertDispatch, RanksAndExpertsWithoutTokensHoldUpNobody) {
  const Mixture no_tokens(4, 2, {0, 9});
  Mixture all_to_one(4, 1, {5, 6});
  for (at::Tensor& logits : all_to_one.logits) logits.select(1, 3).fill_(50);
  // Every token goes to the last expert, so rank 0 has nothing to compute: seen there would be none.
  spawn_ranks(2, [&](const auto& world) { is_as_the_formula_says(world, no_tokens); });
  spawn_ranks(2, [&](const auto& world) {
    const ExpertAxis axis(world);
    const auto rank = static_cast<size_t>(world->rank());
    const at::Tensor matrix = leaf(all_to_one.matrices[rank]);
    int64_t seen = 0;
    const auto run = [&](int64_t /*expert*/, const at::Tensor& rows) {
      seen += rows.size(0);
      return at::matmul(rows, matrix.t());
    };
    const at::Tensor result =
        through_experts(all_to_one.tokens[rank], route(all_to_one.logits[rank], all_to_one.options), 4, axis, run);
    result.sum().backward();
    EXPECT_EQ(seen, rank == 0 ? 0 : 11);
    ASSERT_TRUE(matrix.grad().defined());
    EXPECT_EQ(matrix.grad().abs().sum().item<float>() == 0, rank == 0);
  });
}

TEST(ExpertDispatch, BytesOnTheWireAreThoseOfTheTokensThatLeave) {
  const Mixture mixture(4, 1, {6, 6});
  spawn_ranks(2, [&](const auto& world) {
    const ExpertAxis axis(world);
    const auto rank = static_cast<size_t>(world->rank());
    const Routing routing = route(mixture.logits[rank], mixture.options);
    const layout::Range own = axis.own(4);
    const int64_t leave = (routing.experts < own.begin).logical_or(routing.experts >= own.end).sum().item<int64_t>();
    const int64_t arrive_back = leave;
    const auto bytes = [&] { return axis.group()->bytes_sent(); };
    const int64_t before = bytes();
    const at::Tensor tokens = leaf(mixture.tokens[rank]);
    through_experts(tokens, routing, 4, axis, [](int64_t, const at::Tensor& rows) { return rows * 2; });
    std::vector<int64_t> left_of_ranks;
    for (const std::string& text : world->exchange_texts(std::to_string(leave), "rows")) {
      left_of_ranks.push_back(std::stoll(text));
    }
    const int64_t came = left_of_ranks[1 - rank];  // … and goes back once it is computed
    // Counts of two experts for the other rank, then rows there and back.
    EXPECT_EQ(bytes() - before, 2 * 8 + (arrive_back + came) * kWidth * 4);
  });
}

TEST(ExpertAxis, RefusesExpertsThatDoNotGoRoundAndNamesWhatDoes) {
  EXPECT_EQ(ExpertAxis::of_size(4).of_rank(2, 8).begin, 4);
  try {
    ExpertAxis::of_size(3).own(8);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfig);
    EXPECT_THAT(error.what(), HasSubstr("8 experts do not go round 3 ranks"));
    EXPECT_THAT(error.what(), HasSubstr("use 2 or 4 ranks"));
  }
  EXPECT_THROW(ExpertAxis::of_size(9).own(8), Error);
}

TEST(Router, SigmoidsAreChosenWithTheirBiasAndWeighedWithout) {
  const at::Tensor logits = at::tensor({1.0, 0.0, -1.0}).view({1, 3}), bias = at::tensor({0.0, 0.0, 1.0});
  const RouterOptions options{
      .experts = 3, .per_token = 2, .scores = RouterOptions::Scores::kSigmoid, .sums_to_one = true, .scale = 2.5};
  const Routing routing = route(logits, options, bias);
  // Scores 0.7311, 0.5, 0.2689; with the bias the third comes first (DeepSeek-V3, equation 16).
  EXPECT_TRUE(at::equal(routing.experts, at::tensor({2, 0}, at::kLong).view({1, 2})));
  EXPECT_TRUE(alike(routing.weights, at::tensor({0.26894142 * 2.5, 0.73105858 * 2.5}, at::kFloat).view({1, 2})));
}

// Fedus et al., equations 4 to 6; Zoph et al., equation 5. Of tokens that are there, over two layers, and two ranks.
TEST(Router, LossesAreTheFormulas) {
  at::manual_seed(2);
  const at::Tensor logits = at::randn({9, 4}).requires_grad_(true);
  const at::Tensor counted = at::tensor({1, 1, 0, 1, 1, 1, 1, 0, 1}).to(at::kBool);
  const RouterOptions options{.experts = 4, .per_token = 2};
  const RouterLosses losses{.balance = 0.3, .z = 0.7};
  const auto sums_of = [&](int64_t first, int64_t count) {
    return router_sums(route(logits.narrow(0, first, count), options), counted.narrow(0, first, count));
  };
  const at::Tensor of_one = sums_of(0, 5) * 2, of_other = sums_of(5, 4) * 2;
  const at::Tensor all = of_one + of_other, rows = counted.sum() * 2;
  const double count = rows.item<double>();
  const at::Tensor loss = router_loss(of_one, all, count, losses) + router_loss(of_other, all, count, losses);

  const at::Tensor there = logits.index({counted});
  const at::Tensor chosen = std::get<1>(at::topk(there, 2, -1));
  at::Tensor balance = at::zeros({}), z = at::logsumexp(there, -1).square().mean();
  for (int64_t expert = 0; expert < 4; ++expert) {
    const at::Tensor often = (chosen == expert).sum().to(at::kFloat) / there.size(0);
    balance = balance + 4 * often * at::softmax(there, -1).select(1, expert).mean();
  }
  EXPECT_TRUE(alike(loss, 0.3 * balance + 0.7 * z));
  const at::Tensor expected = torch::autograd::grad({0.3 * balance + 0.7 * z}, {logits})[0];
  EXPECT_TRUE(alike(torch::autograd::grad({loss}, {logits})[0], expected));
  EXPECT_GT(expected.abs().sum().item<float>(), 0);
}

}  // namespace
}  // namespace tessera::nn::expert_dispatch_test
