#include "tessera/config/batch_sizes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::config::batch_sizes_test {
namespace {

constexpr std::optional<int64_t> kNone;

std::string refusal(std::optional<int64_t> global, std::optional<int64_t> micro, std::optional<int64_t> accumulation,
                    int64_t ranks) {
  try {
    resolve_batch_sizes({global, micro, accumulation, ranks}, "ds.json:1:3");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfig);
    EXPECT_EQ(error.report().where, "ds.json:1:3");
    return error.what();
  }
  return "";
}

void expect_sizes(const BatchSizes& sizes, int64_t global, int64_t micro, int64_t accumulation) {
  EXPECT_EQ(sizes.global, global);
  EXPECT_EQ(sizes.micro, micro);
  EXPECT_EQ(sizes.accumulation, accumulation);
}

// The rows of DeepSpeed's table (global T, micro M, accumulation G, world W), each computed by hand.
TEST(BatchSizes, FollowTheSixRowsOfDeepSpeedsTable) {
  expect_sizes(resolve_batch_sizes({32, 2, 4, 4}, ""), 32, 2, 4);          // T, M, G: 2 x 4 x 4
  expect_sizes(resolve_batch_sizes({32, 2, kNone, 4}, ""), 32, 2, 4);      // T, M: G = (32 // 2) // 4
  expect_sizes(resolve_batch_sizes({32, kNone, 4, 4}, ""), 32, 2, 4);      // T, G: M = (32 // 4) // 4
  expect_sizes(resolve_batch_sizes({kNone, 2, 4, 4}, ""), 32, 2, 4);       // M, G: T = 2 x 4 x 4
  expect_sizes(resolve_batch_sizes({32, kNone, kNone, 4}, ""), 32, 8, 1);  // T: G = 1, M = 32 // 4
  expect_sizes(resolve_batch_sizes({kNone, 2, kNone, 4}, ""), 8, 2, 1);    // M: T = 2 x 4, G = 1
}

BatchSizes lowered(int64_t global, int64_t micro, int64_t ranks) {
  return resolve_batch_sizes({.global = global, .micro = micro, .data_parallel_size = ranks, .may_lower_micro = true},
                             "ds.json:1:3");
}

// 32 samples on 4 ranks are 8 a rank; on 6 ranks there is no way, and 30 or 36 samples, or 4 ranks, would do.
TEST(BatchSizes, AMicroBatchThatDoesNotFitTheRanksIsLoweredWhereTheDoorLoadsTheData) {
  expect_sizes(lowered(32, 16, 2), 32, 16, 1);  // fits as it is
  expect_sizes(lowered(32, 16, 4), 32, 8, 1);
  expect_sizes(lowered(32, 16, 1), 32, 16, 2);
  expect_sizes(lowered(24, 5, 2), 24, 4, 3);  // 12 a rank: the largest divisor up to 5
  expect_sizes(lowered(8, 3, 8), 8, 1, 1);
  try {
    lowered(32, 16, 6);
    FAIL() << "32 samples do not split over 6 ranks";
  } catch (const Error& error) {
    EXPECT_EQ(error.report().what, "train_batch_size 32 cannot be split evenly over 6 data-parallel ranks");
    EXPECT_EQ(error.report().fix, "set train_batch_size to 30 or 36, or run on 4 ranks");
  }
  // What all three keys fix stays an error.
  EXPECT_THROW(
      resolve_batch_sizes(
          {.global = 32, .micro = 16, .accumulation = 1, .data_parallel_size = 4, .may_lower_micro = true}, ""),
      Error);
}

TEST(BatchSizes, AreNeverExplainedByAnAccumulationThatNobodySet) {
  const std::string text = refusal(32, 16, kNone, 4);
  EXPECT_THAT(text, testing::HasSubstr(
                        "train_batch_size 32 is less than train_micro_batch_size_per_gpu 16 x 4 data-parallel ranks"));
  EXPECT_THAT(text, testing::Not(testing::HasSubstr("accumulation_steps 0")));
}

TEST(BatchSizes, NeedTheGlobalOrTheMicroBatch) {
  EXPECT_THAT(refusal(kNone, kNone, kNone, 2), testing::HasSubstr("no batch size is given"));
  EXPECT_THAT(refusal(kNone, kNone, 4, 2), testing::HasSubstr("gradient_accumulation_steps alone is not enough"));
}

// DeepSpeed's own example: T=5, M=2, W=2 gives G = (5 // 2) // 2 = 1, and 5 is not 2 x 1 x 2.
TEST(BatchSizes, ThatDoNotDivideListTheFourNumbers) {
  const std::string text = refusal(5, 2, kNone, 2);
  EXPECT_THAT(text, testing::HasSubstr("train_batch_size 5 is not train_micro_batch_size_per_gpu 2 x "
                                       "gradient_accumulation_steps 1 x 2 data-parallel ranks"));
  EXPECT_THAT(text, testing::HasSubstr("set train_batch_size to 4"));
}

// 24 = 4 x 3 x 2: each of the four numbers has a value that would fit when the others stay.
TEST(BatchSizes, ThatContradictEachOtherSayWhatWouldFit) {
  const std::string text = refusal(24, 4, 2, 2);
  EXPECT_THAT(text, testing::HasSubstr("set train_batch_size to 16"));
  EXPECT_THAT(text, testing::HasSubstr("train_micro_batch_size_per_gpu to 6"));
  EXPECT_THAT(text, testing::HasSubstr("gradient_accumulation_steps to 3"));
  EXPECT_THAT(text, testing::HasSubstr("run on 3 data-parallel ranks"));
}

// T=2, W=4: M = 2 // 4 = 0, which DeepSpeed refuses as well (M > 0).
TEST(BatchSizes, SmallerThanTheNumberOfRanksAreRefused) {
  EXPECT_THAT(refusal(2, kNone, kNone, 4), testing::HasSubstr("set train_batch_size to 4"));
}

TEST(BatchSizes, OfZeroOrLessAreRefusedByName) {
  EXPECT_THAT(refusal(0, 1, 1, 1), testing::HasSubstr("'train_batch_size' is 0"));
  EXPECT_THAT(refusal(8, -1, 1, 1), testing::HasSubstr("'train_micro_batch_size_per_gpu' is -1"));
  EXPECT_THAT(refusal(8, kNone, 0, 1), testing::HasSubstr("'gradient_accumulation_steps' is 0"));
}

TEST(BatchSizes, WhoseProductPasses64BitsDoNotWrapAround) {
  EXPECT_NE(refusal(8, int64_t{1} << 40, int64_t{1} << 40, 4), "");
}

}  // namespace
}  // namespace tessera::config::batch_sizes_test
