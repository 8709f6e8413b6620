#include "tessera/data/mlm_collator.h"

#include <gmock/gmock.h>

#include <cmath>
#include <map>
#include <numeric>

#include "tessera/data/philox.h"
#include "tests/data/tiny_folder.h"

namespace tessera::data::mlm_collator_test {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::Gt;
using testing::Lt;

// The known answers that come with the authors' Random123 library (kat_vectors, "philox4x32 10").
TEST(Philox, GivesTheKnownAnswers) {
  using Words = std::array<uint32_t, 4>;
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TokenizedDataset dataset_of(const std::string& lines, int64_t max_length = 512) {
  const TinyFolder folder;
  const std::string path = folder.write("a.txt", lines);
  return TokenizedDataset(*tiny_tokenizer(), {.files = {path}, .max_length = max_length});
}

// 200 samples of 250 letters "a" to "z" and the special token [MASK] in the middle.
TokenizedDataset many_tokens() {
  std::string lines;
  for (int row = 0; row < 200; ++row) {
    for (int i = 0; i < 250; ++i) lines += {static_cast<char>('a' + (row + i) % 26), ' '};
    lines += "[MASK]\n";
  }
  return dataset_of(lines);
}

std::vector<size_t> all_of(const TokenizedDataset& dataset) {
  std::vector<size_t> samples(dataset.size());
  std::iota(samples.begin(), samples.end(), size_t{0});
  return samples;
}

TEST(MlmCollator, PadsToMaxLengthOrToTheLongest) {
  const TokenizedDataset dataset = dataset_of("a\na b c\n");
  const auto tokenizer = tiny_tokenizer();
  const auto samples = all_of(dataset);
  const MlmCollator longest(dataset, *tokenizer, {.probability = 0, .max_length = 8, .pad_to_max_length = false});
  const Batch batch = longest.collate(samples, 0);
  EXPECT_EQ(batch.rows, 2);
  EXPECT_EQ(length_of(batch), 5);
  EXPECT_THAT(values_of(batch, "input_ids"), ElementsAre(2, 5, 3, 0, 0, 2, 5, 6, 7, 3));
  EXPECT_THAT(values_of(batch, "attention_mask"), ElementsAre(1, 1, 1, 0, 0, 1, 1, 1, 1, 1));
  EXPECT_THAT(values_of(batch, "token_type_ids"), Each(0));
  EXPECT_THAT(values_of(batch, "labels"), Each(kNoTarget));
  EXPECT_EQ(batch.tokens, 8);
  EXPECT_EQ(batch.target_tokens, 0);

  const MlmCollator fixed(dataset, *tokenizer, {.max_length = 8});
  EXPECT_EQ(length_of(fixed.collate(samples, 0)), 8);
  EXPECT_EQ(values_of(fixed.collate(samples, 0), "labels").size(), 16u);
}

TEST(MlmCollator, NeverMasksSpecialTokensOrPadding) {
  const TokenizedDataset dataset = dataset_of("a [MASK] [UNK] é\u4E2D b\n");  // the ideograph is [UNK]
  const MlmCollator collator(dataset, *tiny_tokenizer(), {.probability = 1, .max_length = 16});
  const Batch batch = collator.collate(std::vector<size_t>{0}, 0);
  const int64_t no = kNoTarget;  // [CLS] a [MASK] [UNK] e [UNK] b [SEP] and padding
  EXPECT_THAT(values_of(batch, "labels"), ElementsAre(no, 5, no, no, 9, no, 6, no, no, no, no, no, no, no, no, no));
  EXPECT_EQ(batch.target_tokens, 3);
  EXPECT_EQ(values_of(batch, "input_ids")[3], 1);
}

// Each count of n draws with probability p has mean n p and deviation sqrt(n p (1 - p)); five deviations are left on
// both sides, which a right generator passes but in one case of a million.
void expect_binomial(int64_t count, int64_t draws, double p, const char* what) {
  const double mean = static_cast<double>(draws) * p;
  const double margin = 5 * std::sqrt(mean * (1 - p));
  EXPECT_THAT(static_cast<double>(count), testing::AllOf(Gt(mean - margin), Lt(mean + margin))) << what;
}

TEST(MlmCollator, MasksFifteenInAHundredAndSplitsThemEightyTenTen) {
  const TokenizedDataset dataset = many_tokens();
  const auto samples = all_of(dataset);
  const MlmCollator collator(dataset, *tiny_tokenizer(), {});
  const Batch batch = collator.collate(samples, 0);
  int64_t ordinary = 0, masked = 0, kept = 0, replaced = 0;
  std::map<int64_t, int64_t> replacements;
  for (size_t row = 0; row < samples.size(); ++row) {
    for (size_t i = 0; i < dataset.sample(row).size(); ++i) {
      const int64_t token = dataset.sample(row)[i];
      const size_t at = row * 512 + i;
      ordinary += token >= 5;
      if (values_of(batch, "labels")[at] == kNoTarget) {
        EXPECT_EQ(values_of(batch, "input_ids")[at], token);
        continue;
      }
      EXPECT_EQ(values_of(batch, "labels")[at], token);
      if (values_of(batch, "input_ids")[at] == 4) {
        ++masked;
      } else if (values_of(batch, "input_ids")[at] == token) {
        ++kept;
      } else {
        ++replaced;
        ++replacements[values_of(batch, "input_ids")[at]];
      }
    }
  }
  ASSERT_EQ(ordinary, 200 * 250);
  const int64_t targets = batch.target_tokens;
  EXPECT_EQ(targets, masked + kept + replaced);
  expect_binomial(targets, ordinary, 0.15, "targets");
  // A random id is [MASK] or the token itself in 1 case of 57 each (the vocabulary has 57 ids).
  expect_binomial(masked, targets, 0.8 + 0.1 / 57, "[MASK]");
  expect_binomial(kept, targets, 0.1 + 0.1 / 57, "unchanged");
  expect_binomial(replaced, targets, 0.1 * 55 / 57, "random");
  EXPECT_GT(replacements.size(), 50u);  // of 56: ids of the whole vocabulary come up
  EXPECT_EQ(collator.count_targets(samples, 0), targets);
}

TEST(MlmCollator, ASampleLooksTheSameInAnyBatchOfItsEpoch) {
  const TokenizedDataset dataset = many_tokens();
  const auto tokenizer = tiny_tokenizer();
  const MlmCollator collator(dataset, *tokenizer, {});
  const auto row_of = [](const Batch& batch, int64_t row) {
    const auto begin = values_of(batch, "input_ids").begin() + row * length_of(batch);
    return std::vector<int64_t>(begin, begin + length_of(batch));
  };
  const Batch together = collator.collate(std::vector<size_t>{3, 7, 11}, 2);
  EXPECT_EQ(row_of(together, 1), row_of(collator.collate(std::vector<size_t>{7}, 2), 0));
  EXPECT_NE(row_of(together, 1), row_of(collator.collate(std::vector<size_t>{7}, 3), 0));
  const MlmCollator other_seed(dataset, *tokenizer, {.seed = 43});
  EXPECT_NE(row_of(together, 1), row_of(other_seed.collate(std::vector<size_t>{7}, 2), 0));
}

TEST(MlmCollator, RefusesAProbabilityAboveOneAndSamplesThatDoNotFit) {
  const TokenizedDataset dataset = dataset_of("a b c d\n");
  EXPECT_EQ(report_of(ErrorKind::kConfig, [&] { MlmCollator(dataset, *tiny_tokenizer(), {.probability = 15}); }).what,
            "the masking probability is 15");
  EXPECT_EQ(report_of(ErrorKind::kConfig, [&] { MlmCollator(dataset, *tiny_tokenizer(), {.max_length = 5}); }).what,
            "max_length is 5, but a sample has 6 tokens");
}

TEST(TokenizedDataset, FramesAndCutsEachRow) {
  const TinyFolder folder;
  const std::string path = folder.write("a.csv", "text\na b c d\n\"\"\ne\n");
  const TokenizedDataset dataset(*tiny_tokenizer(), {.files = {path, path}, .max_length = 5, .drop_empty = false});
  ASSERT_EQ(dataset.size(), 6u);
  EXPECT_THAT(dataset.sample(0), ElementsAre(2, 5, 6, 7, 3));
  EXPECT_THAT(dataset.sample(1), ElementsAre(2, 3));  // an empty row is a sample
  EXPECT_THAT(dataset.sample(2), ElementsAre(2, 9, 3));
  EXPECT_THAT(dataset.sample(5), ElementsAre(2, 9, 3));
  EXPECT_EQ(dataset.total_tokens(), 2 * (5 + 2 + 3));

  const TokenizedDataset dropped(*tiny_tokenizer(), {.files = {path}, .max_length = 5});
  EXPECT_EQ(dropped.size(), 2u);
}

TEST(TokenizedDataset, EveryReaderDropsEmptyRowsOrKeepsThem) {
  const TinyFolder folder;
  for (const std::string& path :
       {folder.write("a.csv", "text\na\n\"\"\n\"  \"\nb\n"), folder.write("a.txt", "a\n\n  \nb\n"),
        folder.write("a.jsonl", "{\"text\": \"a\"}\n{\"text\": \"\"}\n{\"text\": \"  \"}\n{\"text\": \"b\"}\n")}) {
    const TokenizedDataset dropped(*tiny_tokenizer(), {.files = {path}});
    EXPECT_EQ(dropped.size(), 2u) << path;
    EXPECT_EQ(dropped.counts().rows, 4) << path;
    EXPECT_EQ(dropped.counts().empty_rows, 2) << path;
    EXPECT_EQ(TokenizedDataset(*tiny_tokenizer(), {.files = {path}, .drop_empty = false}).size(), 4u) << path;
  }
}

// Seven letters, of which a sample of max_length 5 holds three.
TEST(TokenizedDataset, ALongRowIsCutOrBecomesSeveralSamples) {
  const TinyFolder folder;
  const std::string path = folder.write("a.txt", "a b c d e f g\nh\n");
  const TokenizedDataset cut(*tiny_tokenizer(), {.files = {path}, .max_length = 5});
  ASSERT_EQ(cut.size(), 2u);
  EXPECT_THAT(cut.sample(0), ElementsAre(2, 5, 6, 7, 3));
  EXPECT_EQ(cut.counts().long_rows, 1);
  EXPECT_EQ(cut.counts().text_tokens, 8);
  EXPECT_EQ(cut.counts().cut_tokens, 4);

  const TokenizedDataset chunks(*tiny_tokenizer(), {.files = {path}, .max_length = 5, .long_text = LongText::kChunk});
  ASSERT_EQ(chunks.size(), 4u);
  EXPECT_THAT(chunks.sample(0), ElementsAre(2, 5, 6, 7, 3));
  EXPECT_THAT(chunks.sample(1), ElementsAre(2, 8, 9, 10, 3));
  EXPECT_THAT(chunks.sample(2), ElementsAre(2, 11, 3));
  EXPECT_THAT(chunks.sample(3), ElementsAre(2, 12, 3));
  EXPECT_EQ(chunks.counts().cut_tokens, 0);
  EXPECT_EQ(chunks.counts().long_rows, 1);
}

TEST(TokenizedDataset, CountsUnknownTokens) {
  const TinyFolder folder;
  const TokenizedDataset dataset(*tiny_tokenizer(), {.files = {folder.write("a.txt", "a 三 b 四\n")}});
  EXPECT_EQ(dataset.counts().text_tokens, 4);
  EXPECT_EQ(dataset.counts().unknown_tokens, 2);
}

TEST(TokenizedDataset, RefusesFilesWithoutText) {
  const TinyFolder folder;
  const std::string path = folder.write("a.csv", "text\n\"\"\n[MASK] 三\n");
  EXPECT_THAT(report_of(ErrorKind::kData, [&] { TokenizedDataset(*tiny_tokenizer(), {.files = {path}}); }).what,
              testing::HasSubstr("there is no text"));
  EXPECT_THAT(report_of(ErrorKind::kData, [&] { TokenizedDataset(*tiny_tokenizer(), {}); }).what,
              testing::HasSubstr("there is no text"));
  report_of(ErrorKind::kConfig, [&] { TokenizedDataset(*tiny_tokenizer(), {.files = {path}, .max_length = 2}); });
}

}  // namespace
}  // namespace tessera::data::mlm_collator_test
