#include "tessera/data/clm_collator.h"

#include <gmock/gmock.h>

#include "tests/data/tiny_folder.h"

namespace tessera::data::clm_collator_test {
namespace {

using testing::ElementsAre;

constexpr int64_t kNone = kNoTarget;

// Of the tiny folder's WordPiece: [CLS] is 2, [SEP] 3, "a" 5, "b" 6, "c" 7.
TokenizedDataset dataset_of(const std::string& lines) {
  const TinyFolder folder;
  return TokenizedDataset(*tiny_tokenizer(), {.files = {folder.write("a.txt", lines)}, .max_length = 100});
}

TEST(ClmCollator, FillsRowsAndStartsPositionsAgainWithEachDocument) {
  const TokenizedDataset dataset = dataset_of("a b\na b c\n");  // 2 5 6 3 and 2 5 6 7 3
  const ClmCollator collator(dataset, {.max_length = 6, .packing = Packing::kFill, .padding_id = 9});
  ASSERT_EQ(collator.size(), 2u);
  const Batch batch = collator.collate(std::vector<size_t>{0, 1}, 0);
  EXPECT_THAT(values_of(batch, "input_ids"), ElementsAre(2, 5, 6, 3, 2, 5, 6, 7, 3, 9, 9, 9));
  EXPECT_THAT(values_of(batch, "labels"), ElementsAre(kNone, 5, 6, 3, kNone, 5, kNone, 7, 3, kNone, kNone, kNone));
  EXPECT_THAT(values_of(batch, "position_ids"), ElementsAre(0, 1, 2, 3, 0, 1, 0, 1, 2, 3, 4, 5));
  EXPECT_FALSE(batch.arrays.contains("attention_mask"));
  EXPECT_EQ(batch.tokens, 9);
  EXPECT_EQ(batch.target_tokens, 6);
  EXPECT_EQ(collator.count_targets(std::vector<size_t>{0}, 0), 4);
}

TEST(ClmCollator, ARowForEachDocumentHasAMask) {
  const TokenizedDataset dataset = dataset_of("a b\na b c\n");
  const ClmCollator collator(dataset, {.max_length = 8, .packing = Packing::kNone, .pad_to_max_length = false});
  const Batch batch = collator.collate(std::vector<size_t>{0, 1}, 0);
  EXPECT_THAT(values_of(batch, "input_ids"), ElementsAre(2, 5, 6, 3, 0, 2, 5, 6, 7, 3));
  EXPECT_THAT(values_of(batch, "attention_mask"), ElementsAre(1, 1, 1, 1, 0, 1, 1, 1, 1, 1));
  EXPECT_THAT(values_of(batch, "labels"), ElementsAre(kNone, 5, 6, 3, kNone, kNone, 5, 6, 7, 3));
  EXPECT_EQ(batch.target_tokens, 7);
}

}  // namespace
}  // namespace tessera::data::clm_collator_test
