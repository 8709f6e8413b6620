#include "tessera/train/label_metrics.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace tessera::train::label_metrics_test {
namespace {

struct Found {
  double accuracy, f1;
};

// `given` are what the logits say.
Found metrics_of(const std::vector<int64_t>& wanted, const std::vector<int64_t>& given, int64_t labels) {
  const at::Tensor logits = at::one_hot(at::tensor(given), labels).to(at::kFloat) - 0.5;
  const LossSum seen{.tallies = label_tallies(logits, at::tensor(wanted))};
  const std::vector<Metric> metrics = label_metrics(static_cast<size_t>(labels));
  return {metrics.at(0).value(seen), metrics.at(1).value(seen)};
}

// The example of scikit-learn's f1_score: average="macro" gives 0.2666…
TEST(LabelMetrics, TheMacroF1OfScikitLearnsExample) {
  const Found found = metrics_of({0, 1, 2, 0, 1, 2}, {0, 2, 1, 0, 0, 1}, 3);
  EXPECT_NEAR(found.f1, 0.8 / 3, 1e-12);
  EXPECT_NEAR(found.accuracy, 2.0 / 6, 1e-12);
}

// f1_score takes its mean over labels that occur: a label that no row has and none was given counts for nothing.
TEST(LabelMetrics, ALabelThatDoesNotOccurIsLeftOut) {
  EXPECT_NEAR(metrics_of({0, 1, 2, 0, 1, 2}, {0, 2, 1, 0, 0, 1}, 5).f1, 0.8 / 3, 1e-12);
}

// TP 2, FP 1, FN 1 of label 1: 2 TP / (2 TP + FP + FN) = 4 / 6.
TEST(LabelMetrics, OfTwoLabelsTheF1IsThatOfTheSecond) {
  EXPECT_NEAR(metrics_of({1, 1, 1, 0, 0}, {1, 1, 0, 1, 0}, 2).f1, 4.0 / 6, 1e-12);
  EXPECT_EQ(metrics_of({0, 0}, {0, 0}, 2).f1, 0);
}

TEST(LabelMetrics, TalliesAddUp) {
  const auto one = label_tallies(at::eye(2), at::tensor(std::vector<int64_t>{0, 0}));
  EXPECT_EQ(one, (std::vector<double>{1, 0, 1, 1, 2, 0}));
}

}  // namespace
}  // namespace tessera::train::label_metrics_test
