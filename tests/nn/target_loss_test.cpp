#include "tessera/nn/target_loss.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::nn::target_loss_test {
namespace {

struct Layer {
  at::Tensor hidden, weight, bias, labels;
};

// `rows` rows, of which every third has no label.
Layer layer(int64_t rows, int64_t vocab, at::ScalarType dtype, bool with_bias = true) {
  at::manual_seed(3);
  const auto drawn = [&](at::IntArrayRef shape) { return at::randn(shape).to(dtype).requires_grad_(true); };
  Layer made{.hidden = drawn({rows, 8}), .weight = drawn({vocab, 8}), .labels = at::randint(vocab, {rows}, at::kLong)};
  if (with_bias) made.bias = drawn({vocab});
  made.labels.masked_fill_(at::arange(rows) % 3 == 0, kNoTarget);
  return made;
}

// LibTorch's own, with whole logits, in fp32.
at::Tensor whole_loss_sum(const Layer& of) {
  const at::Tensor logits = at::linear(of.hidden.to(at::kFloat), of.weight.to(at::kFloat),
                                       of.bias.defined() ? std::optional(of.bias.to(at::kFloat)) : std::nullopt);
  return at::cross_entropy_loss(logits, of.labels, {}, at::Reduction::Sum, kNoTarget);
}

void expect_alike(const Layer& of, double tolerance) {
  const at::Tensor want = whole_loss_sum(of) * 3;
  want.backward();
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& each : {of.hidden, of.weight, of.bias}) {
    if (each.defined()) {
      gradients.push_back(each.grad().clone());
      each.mutable_grad().reset();
    }
  }
  const at::Tensor got = target_loss_sum(of.hidden, of.weight, of.bias, of.labels) * 3;
  EXPECT_NEAR(got.item<double>(), want.item<double>(), tolerance * want.item<double>());
  got.backward();
  size_t at = 0;
  for (const at::Tensor& each : {of.hidden, of.weight, of.bias}) {
    if (!each.defined()) continue;
    const at::Tensor wanted = gradients[at++].to(at::kFloat), made = each.grad().to(at::kFloat);
    EXPECT_LE((made - wanted).abs().max().item<double>(), tolerance * wanted.abs().max().item<double>());
  }
  const at::NoGradGuard no_grad;
  EXPECT_NEAR((target_loss_sum(of.hidden, of.weight, of.bias, of.labels) * 3).item<double>(), want.item<double>(),
              tolerance * want.item<double>());
}

TEST(TargetLoss, OfOnePieceIsThatOfWholeLogits) {
  expect_alike(layer(20, 50, at::kFloat), 1e-5);
  expect_alike(layer(20, 50, at::kFloat, /*with_bias=*/false), 1e-5);
  expect_alike(layer(20, 50, at::kBFloat16), 1e-2);
}

TEST(TargetLoss, OfSeveralPiecesToo) {
  constexpr int64_t kVocab = 200'000;
  ASSERT_LT(target_rows_at_once(kVocab), 100);
  expect_alike(layer(200, kVocab, at::kFloat), 1e-4);  // sums over so many tokens, in fp32 on both sides
  expect_alike(layer(200, kVocab, at::kBFloat16), 2e-2);
}

TEST(TargetLoss, WithoutALabelIsZeroAndSoAreItsGradients) {
  Layer none = layer(6, 50, at::kFloat);
  none.labels.fill_(kNoTarget);
  const at::Tensor loss = target_loss_sum(none.hidden, none.weight, none.bias, none.labels);
  EXPECT_EQ(loss.item<float>(), 0);
  loss.backward();
  for (const at::Tensor& each : {none.hidden, none.weight, none.bias}) {
    ASSERT_TRUE(each.grad().defined());
    EXPECT_EQ(each.grad().abs().sum().item<float>(), 0);
  }
}

TEST(TargetLoss, GradientsAreOnlyThoseAskedFor) {
  Layer frozen = layer(6, 50, at::kFloat);
  frozen.weight = frozen.weight.detach();
  frozen.bias = frozen.bias.detach();
  target_loss_sum(frozen.hidden, frozen.weight, frozen.bias, frozen.labels).backward();
  EXPECT_TRUE(frozen.hidden.grad().defined());
  EXPECT_FALSE(frozen.weight.grad().defined());
}

TEST(TargetLoss, RunsBackwardOnce) {
  const Layer twice = layer(6, 50, at::kFloat);
  const at::Tensor loss = target_loss_sum(twice.hidden, twice.weight, twice.bias, twice.labels);
  loss.backward({}, /*retain_graph=*/true);
  try {
    loss.backward();
    ADD_FAILURE() << "it ran again";
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("backward ran through this loss before"));
  }
}

// LibTorch's own: the log-softmax of whole logits, in fp32, of each row's labels.
at::Tensor whole_log_probs(const Layer& of) {
  const at::Tensor logits = at::linear(of.hidden.to(at::kFloat), of.weight.to(at::kFloat),
                                       of.bias.defined() ? std::optional(of.bias.to(at::kFloat)) : std::nullopt);
  const at::Tensor all = at::log_softmax(logits, 2);
  const at::Tensor of_labels = all.gather(2, of.labels.clamp_min(0).unsqueeze(2)).squeeze(2);
  return of_labels.masked_fill(of.labels == kNoTarget, 0).sum(1);
}

// In rows of a batch.
Layer batch(int64_t rows, int64_t length, int64_t vocab, at::ScalarType dtype, bool with_bias = true) {
  Layer made = layer(rows * length, vocab, dtype, with_bias);
  made.hidden = made.hidden.detach().view({rows, length, 8}).requires_grad_(true);
  made.labels = made.labels.view({rows, length});
  return made;
}

void expect_log_probs_alike(const Layer& of, double tolerance) {
  const at::Tensor factors = at::linspace(-1, 2, of.labels.size(0));
  const at::Tensor want = whole_log_probs(of);
  (want * factors).sum().backward();
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& each : {of.hidden, of.weight, of.bias}) {
    if (!each.defined()) continue;
    gradients.push_back(each.grad().clone());
    each.mutable_grad().reset();
  }
  const at::Tensor got = target_log_probs(of.hidden, of.weight, of.bias, of.labels);
  EXPECT_EQ(got.scalar_type(), at::kFloat);
  const auto near = [&](const at::Tensor& made, const at::Tensor& wanted) {
    EXPECT_LE((made.to(at::kFloat) - wanted.to(at::kFloat)).abs().max().item<double>(),
              tolerance * wanted.to(at::kFloat).abs().max().item<double>());
  };
  near(got.detach(), want.detach());
  (got * factors).sum().backward();
  size_t at = 0;
  for (const at::Tensor& each : {of.hidden, of.weight, of.bias}) {
    if (each.defined()) near(each.grad(), gradients[at++]);
  }
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(at::equal(target_log_probs(of.hidden, of.weight, of.bias, of.labels), got.detach()));
}

TEST(TargetLogProbs, AreThoseOfWholeLogitsAndSoAreTheirGradients) {
  expect_log_probs_alike(batch(4, 5, 50, at::kFloat), 1e-5);
  expect_log_probs_alike(batch(4, 5, 50, at::kFloat, /*with_bias=*/false), 1e-5);
  expect_log_probs_alike(batch(4, 5, 50, at::kBFloat16), 2e-2);
}

TEST(TargetLogProbs, OfSeveralPiecesToo) {
  constexpr int64_t kVocab = 200'000;
  ASSERT_LT(target_rows_at_once(kVocab), 100);
  expect_log_probs_alike(batch(4, 50, kVocab, at::kFloat), 1e-4);
}

TEST(TargetLogProbs, OfARowWithoutALabelIsZero) {
  const Layer made = batch(3, 4, 50, at::kFloat);
  made.labels[1].fill_(kNoTarget);
  const at::Tensor got = target_log_probs(made.hidden, made.weight, made.bias, made.labels);
  EXPECT_EQ(got[1].item<float>(), 0);
  EXPECT_LT(got[0].item<float>(), 0);
  got.sum().backward();
  EXPECT_EQ(made.hidden.grad()[1].abs().sum().item<float>(), 0);
}

}  // namespace
}  // namespace tessera::nn::target_loss_test
