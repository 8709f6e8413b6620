#include "tessera/data/collator.h"

#include <cmath>
#include <map>

#include "tests/data/tiny_vocabulary.h"

namespace tessera::data {
namespace {

class Collator : public WithTinyVocabulary {
 protected:
  // `rows` samples of 20 ordinary tokens each.
  TokenizedDataset dataset(int rows) {
    std::string text;
    for (int i = 0; i < rows; ++i) text += "a b c d e f g h i j k l m n o p q r s t\n";
    return TokenizedDataset(*tokenizer_, {.files = {write("text.txt", text)}, .max_length = 32});
  }
};

TEST_F(Collator, MasksAsTheBertPaperDoes) {
  const auto data = dataset(2000);
  const MlmCollator collator(data, *tokenizer_, {.probability = 0.15, .max_length = 32, .seed = 1});
  int64_t targets = 0, masked = 0, kept = 0;
  for (size_t i = 0; i < data.size(); ++i) {
    const std::vector<size_t> samples{i};
    const Batch batch = collator.collate(samples, 0);
    for (int64_t at = 0; at < batch.length; ++at) {
      const int64_t label = batch.labels[at];
      const int64_t input = batch.input_ids[at];
      if (label == kNoTarget) continue;
      ++targets;
      EXPECT_GE(label, 5) << "a special token or padding is a target";
      EXPECT_EQ(label, data.sample(i)[at]);
      masked += input == 4;
      kept += input == label;
    }
  }
  // Bounds of five standard deviations of the binomial distribution; 40,000 ordinary tokens, each a target with 0.15.
  const double tokens = 40'000;
  EXPECT_NEAR(targets / tokens, 0.15, 5 * std::sqrt(0.15 * 0.85 / tokens));
  // 80 % [MASK], and a random id of 30 is [MASK] in 1 of 30; 10 % unchanged, and a random id is the same in 1 of 30.
  const double n = static_cast<double>(targets);
  EXPECT_NEAR(masked / n, 0.8 + 0.1 / 30, 5 * std::sqrt(0.8 * 0.2 / n));
  EXPECT_NEAR(kept / n, 0.1 + 0.1 / 30, 5 * std::sqrt(0.1 * 0.9 / n));
}

TEST_F(Collator, MasksDependOnSeedEpochAndSampleAlone) {
  const auto data = dataset(8);
  const MlmCollator collator(data, *tokenizer_, {.max_length = 32, .seed = 1});
  const std::vector<size_t> many{3, 5, 7}, one{5};
  const Batch three = collator.collate(many, 2);
  const Batch alone = collator.collate(one, 2);
  for (int64_t at = 0; at < alone.length; ++at) {
    EXPECT_EQ(three.input_ids[three.length + at], alone.input_ids[at]);
    EXPECT_EQ(three.labels[three.length + at], alone.labels[at]);
  }
  EXPECT_NE(collator.collate(many, 3).labels, three.labels);
  const MlmCollator other(data, *tokenizer_, {.max_length = 32, .seed = 2});
  EXPECT_NE(other.collate(many, 2).labels, three.labels);
}

TEST_F(Collator, PadsToTheMaximumOrToTheLongest) {
  const TokenizedDataset data(*tokenizer_, {.files = {write("text.txt", "a b c\na\n")}, .max_length = 16});
  const std::vector<size_t> both{0, 1};
  const Batch wide = MlmCollator(data, *tokenizer_, {.max_length = 16}).collate(both, 0);
  EXPECT_EQ(wide.length, 16);
  EXPECT_EQ(wide.tokens, 5 + 3);  // [CLS] and [SEP] around three tokens and one
  const Batch narrow = MlmCollator(data, *tokenizer_, {.max_length = 16, .pad_to_max_length = false}).collate(both, 0);
  EXPECT_EQ(narrow.length, 5);
  EXPECT_EQ(narrow.attention_mask, (std::vector<int64_t>{1, 1, 1, 1, 1, 1, 1, 1, 0, 0}));
}

TEST_F(Collator, CountsTargetsAsTheBatchHasThem) {
  const auto data = dataset(8);
  const MlmCollator collator(data, *tokenizer_, {.probability = 0.4, .max_length = 32});
  const std::vector<size_t> samples{1, 2, 6};
  EXPECT_EQ(collator.count_targets(samples, 5), collator.collate(samples, 5).target_tokens);
}

}  // namespace
}  // namespace tessera::data
