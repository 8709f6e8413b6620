#include "tessera/train/text_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/data/tiny_folder.h"

namespace tessera::train::text_data_test {
namespace {

using data::TinyFolder;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

struct Told {
  std::string line;
  std::vector<std::string> doubts;
};

Told told_of(const std::string& lines, const data::DatasetOptions& how) {
  const TinyFolder folder;
  data::DatasetOptions options = how;
  options.files = {folder.write("a.txt", lines)};
  const data::TokenizedDataset dataset(*data::tiny_tokenizer(), options);
  return {describe_dataset("data.train", dataset, options), doubts_of_dataset("data.train", dataset, options)};
}

TEST(DescribeDataset, SaysRowsSamplesAndTokens) {
  const Told told = told_of("a b\nc\n", {.max_length = 8});
  EXPECT_EQ(told.line, "data.train: 2 rows; 2 samples, 7 tokens per epoch");  // 2 + 2 and 1 + 2
  EXPECT_THAT(told.doubts, IsEmpty());
}

TEST(DescribeDataset, SaysWhatIsEmptyCutAndUnknown) {
  const Told told = told_of("a b c d e f\n\n三\n", {.max_length = 5});
  EXPECT_EQ(told.line,
            "data.train: 3 rows, 1 of them empty and left out; 2 samples, 8 tokens per epoch; 1 row is longer than "
            "data.max_length "
            "and cut: 3 tokens (42.9 %) left out; 14.3 % of the tokens are not in the vocabulary");
  EXPECT_THAT(told.doubts, ElementsAre(HasSubstr("data.long_text: chunk"), HasSubstr("is this the right tokenizer")));
}

TEST(DescribeDataset, SaysThatLongRowsWereSplitAndEmptyOnesKept) {
  const Told told =
      told_of("a b c d e f\n\n", {.max_length = 5, .drop_empty = false, .long_text = data::LongText::kChunk});
  EXPECT_EQ(told.line,
            "data.train: 2 rows, 1 of them empty and kept as samples (data.drop_empty: false); 3 samples, 12 tokens "
            "per epoch; 1 row "
            "is longer than data.max_length and split into several samples");
  EXPECT_THAT(told.doubts, IsEmpty());
}

}  // namespace
}  // namespace tessera::train::text_data_test
