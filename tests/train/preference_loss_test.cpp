// The losses by numbers that were computed by hand from the papers' equations.
#include "tessera/train/preference_loss.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

namespace tessera::train::preference_loss_test {
namespace {

using Loss = config::RunFile::Dpo::Loss;

// Log-ratios h_w = 1, h_l = -2 of answers of 4 and 5 tokens; and the same pair the other way round.
PreferenceLosses losses_of(const config::RunFile::Dpo& options) {
  const AnswerLogProbs reference{at::tensor({-10.0F, -20.0F}), at::tensor({-20.0F, -10.0F})};
  const AnswerLogProbs policy{at::tensor({-9.0F, -22.0F}), at::tensor({-22.0F, -9.0F})};
  return preference_losses(options, policy, reference, {at::tensor({4.0F, 5.0F}), at::tensor({5.0F, 4.0F})});
}

void expect_losses(const config::RunFile::Dpo& options, double right, double wrong) {
  const PreferenceLosses found = losses_of(options);
  EXPECT_NEAR(found.losses[0].item<double>(), right, 1e-6);
  EXPECT_NEAR(found.losses[1].item<double>(), wrong, 1e-6);
  EXPECT_NEAR(found.margins[0].item<double>(), 3 * options.beta, 1e-6);
  EXPECT_NEAR(found.margins[1].item<double>(), -3 * options.beta, 1e-6);
}

double minus_log_sigmoid(double x) { return std::log1p(std::exp(-x)); }

TEST(PreferenceLosses, AreThoseOfThePapers) {
  const double of_right = minus_log_sigmoid(0.6), of_wrong = minus_log_sigmoid(-0.6);  // beta · 3
  expect_losses({.loss = Loss::kSigmoid, .beta = 0.2}, of_right, of_wrong);
  expect_losses({.loss = Loss::kSigmoid, .beta = 0.2, .label_smoothing = 0.25}, 0.75 * of_right + 0.25 * of_wrong,
                0.75 * of_wrong + 0.25 * of_right);
  expect_losses({.loss = Loss::kHinge, .beta = 0.2}, 0.4, 1.6);
  expect_losses({.loss = Loss::kHinge, .beta = 0.5}, 0, 2.5);
  // 1 / 4 + 2 / 5 = 0.65; 1 / (2 · 0.2) = 2.5
  expect_losses({.loss = Loss::kIpo, .beta = 0.2}, (0.65 - 2.5) * (0.65 - 2.5), (-0.65 - 2.5) * (-0.65 - 2.5));
}

}  // namespace
}  // namespace tessera::train::preference_loss_test
