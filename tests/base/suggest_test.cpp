#include "tessera/base/suggest.h"

#include <gtest/gtest.h>

#include <vector>

namespace tessera::suggest_test {
namespace {

const std::vector<std::string> kKeys = {"train_batch_size", "zero_optimization", "gradient_clipping", "bf16", "fp16"};

TEST(NearestName, FindsATypoOfEachKind) {
  EXPECT_EQ(nearest_name("zero_optimisation", kKeys), "zero_optimization");  // replaced
  EXPECT_EQ(nearest_name("train_batchsize", kKeys), "train_batch_size");     // left out
  EXPECT_EQ(nearest_name("gradeint_clipping", kKeys), "gradient_clipping");  // swapped
  EXPECT_EQ(nearest_name("BF16", kKeys), "bf16");                            // case
}

TEST(NearestName, SaysNothingWhenNothingIsNear) { EXPECT_EQ(nearest_name("learning_rate", kKeys), std::nullopt); }

TEST(NearestName, OfNoCandidatesIsNothing) { EXPECT_EQ(nearest_name("bf16", {}), std::nullopt); }

}  // namespace
}  // namespace tessera::suggest_test
