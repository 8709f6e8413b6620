#include "tessera/data/label_dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tests/data/tiny_folder.h"

namespace tessera::data::label_dataset_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// The cases of the `tokenizers` package's own test of longest_first (utils/truncation.rs): texts of 0, 2, 4 and 8
// tokens, and room for 7.
TEST(PairLengths, AreThoseOfLongestFirst) {
  using Lengths = std::pair<size_t, size_t>;
  const std::tuple<Lengths, Lengths> cases[] = {
      {{0, 0}, {0, 0}}, {{0, 2}, {0, 2}}, {{0, 4}, {0, 4}}, {{0, 8}, {0, 7}}, {{2, 0}, {2, 0}}, {{2, 2}, {2, 2}},
      {{2, 4}, {2, 4}}, {{2, 8}, {2, 5}}, {{4, 0}, {4, 0}}, {{4, 2}, {4, 2}}, {{4, 4}, {3, 4}}, {{4, 8}, {3, 4}},
      {{8, 0}, {7, 0}}, {{8, 2}, {5, 2}}, {{8, 4}, {4, 3}}, {{8, 8}, {3, 4}},
  };
  for (const auto& [of, want] : cases) {
    EXPECT_EQ(pair_lengths(of.first, of.second, 7), want) << of.first << " and " << of.second;
  }
}

TEST(Labels, AreNamesOrNumbers) {
  const std::vector<std::string> names = {"no", "maybe", "yes"};
  EXPECT_EQ(number_of_label("maybe", names), 1);
  EXPECT_EQ(number_of_label("2", names), 2);
  for (const char* const none : {"3", "-1", "", "Yes", "1.0", "true", "99999999999999999999"}) {
    EXPECT_LT(number_of_label(none, names), 0) << none;
  }
  EXPECT_EQ(number_of_label("true", {"ham", "spam"}), 1);
  EXPECT_EQ(number_of_label("false", {"ham", "spam"}), 0);
  EXPECT_EQ(number_of_label("1", {"1", "0"}), 0);  // a name comes first
}

class LabelsOfFiles : public testing::Test {
 protected:
  std::vector<std::string> labels_of(const std::string& csv) const {
    return labels_of_files({folder_.write("rows.csv", "label\n" + csv)}, "label");
  }
  std::string refusal_of(const std::string& csv) const {
    try {
      labels_of(csv);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kData);
      return error.what();
    }
    return "";
  }
  TinyFolder folder_;
};

TEST_F(LabelsOfFiles, AreSorted) {
  EXPECT_THAT(labels_of("b\na\nb\n"), ElementsAre("a", "b"));
  EXPECT_THAT(labels_of("10\n9\n-1\n"), ElementsAre("-1", "9", "10"));
  EXPECT_THAT(labels_of("10\n9\nx\n"), ElementsAre("10", "9", "x"));
  EXPECT_THAT(labels_of("nan\ninf\n"), ElementsAre("inf", "nan"));  // words as any other
}

TEST_F(LabelsOfFiles, OneAloneTooManyAndOtherNumbersAreRefused) {
  EXPECT_THAT(refusal_of("a\na\n"), HasSubstr("all rows have the label 'a'"));
  EXPECT_THAT(refusal_of("1\n0.5\n"), HasSubstr("'0.5' in the column 'label' is a number, but no whole one"));
  std::string many;
  for (int i = 0; i <= 10'000; ++i) many += std::to_string(i) + "\n";
  EXPECT_THAT(refusal_of(many), HasSubstr("more than 10,000 different labels"));
}

}  // namespace
}  // namespace tessera::data::label_dataset_test
