#include "tessera/nn/context_axis.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::nn::context_axis_test {
namespace {

using testing::HasSubstr;
using enum ContextAttention;

std::string refusal(const SharedHeads& heads, std::optional<ContextAttention> asked) {
  try {
    context_attention_of(heads, asked, "run.yaml, parallel");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfig);
    return error.what();
  }
  return "";
}

SharedHeads heads_of(int64_t heads, int64_t key_heads, int tensor_ranks, int context_ranks) {
  return {.heads = heads, .key_heads = key_heads, .tensor_ranks = tensor_ranks, .context_ranks = context_ranks};
}

TEST(ContextAxis, BytesOfATokenByHand) {
  // 32 heads of 8 key heads over 4 ranks in bf16: 2 * 2 * (2 * 32 + 2 * 8) * 3 / 4, 2 * 2 * 2 * 8 * 3 + 4 * 2 * 8 * 4.
  SharedHeads heads = heads_of(32, 8, 1, 4);
  heads.element_size = 2;
  EXPECT_EQ(bytes_sent_for_token(kUlysses, heads), 240);
  EXPECT_EQ(bytes_sent_for_token(kRing, heads), 448);
  // Of two tensor ranks, each of 16 heads of 4 key heads, which 8 context ranks hold twice.
  heads.tensor_ranks = 2;
  heads.context_ranks = 8;
  EXPECT_EQ(bytes_sent_for_token(kUlysses, heads), 2 * 2 * (2 * 16 + 2 * 8) * 7 / 8);
  EXPECT_EQ(bytes_sent_for_token(kRing, heads), 2 * 2 * 2 * 4 * 7 + 4 * 2 * 4 * 8);
}

TEST(ContextAxis, TheOneThatSendsLessIsTaken) {
  EXPECT_EQ(context_attention_of(heads_of(32, 32, 1, 2), {}, ""), kUlysses);
  EXPECT_EQ(context_attention_of(heads_of(32, 1, 1, 2), {}, ""), kRing);
  EXPECT_EQ(context_attention_of(heads_of(32, 8, 1, 8), {}, ""), kUlysses);
  EXPECT_EQ(context_attention_of(heads_of(32, 1, 1, 2), kUlysses, ""), kUlysses);
  EXPECT_EQ(context_attention_of(heads_of(32, 32, 1, 2), kRing, ""), kRing);
}

TEST(ContextAxis, HeadsThatDoNotGoRoundLeaveTheRing) {
  EXPECT_EQ(context_attention_of(heads_of(28, 28, 1, 32), {}, ""), kRing);
  EXPECT_EQ(context_attention_of(heads_of(6, 2, 1, 3), {}, ""), kRing);
  EXPECT_EQ(refusal(heads_of(8, 2, 2, 4), kUlysses), "");  // a tensor rank has 4 heads of one key head
  EXPECT_THAT(refusal(heads_of(8, 2, 2, 8), kUlysses),
              HasSubstr("4 attention heads of 1 key heads cannot be cut over 8 ranks"));
  EXPECT_THAT(refusal(heads_of(6, 2, 1, 3), kUlysses), HasSubstr("run.yaml, parallel"));
  EXPECT_THAT(refusal(heads_of(6, 2, 1, 3), kUlysses), HasSubstr("use at most 2 ranks, or 4, 6; or leave"));
}

TEST(ContextAxis, WhatARingDoesNotDoIsSaid) {
  SharedHeads heads = heads_of(6, 1, 1, 2);
  heads.why_no_ring = "it is Tuesday";
  EXPECT_EQ(context_attention_of(heads, {}, ""), kUlysses);
  EXPECT_THAT(refusal(heads, kRing), HasSubstr("ring attention is not possible here: it is Tuesday"));
  heads = heads_of(6, 2, 1, 3);
  heads.why_no_ring = "it is Tuesday";
  EXPECT_THAT(refusal(heads, {}), HasSubstr("takes any number of heads, but it is Tuesday"));
}

}  // namespace
}  // namespace tessera::nn::context_axis_test
