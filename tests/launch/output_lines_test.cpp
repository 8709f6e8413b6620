#include "tessera/launch/output_lines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::launch::output_lines_test {
namespace {

using ::testing::ElementsAre;

class OutputLinesTest : public ::testing::Test {
 protected:
  LastLines last;
  OutputLines lines{"[rank 1] ", last};
};

TEST_F(OutputLinesTest, ALineIsPassedOnWhenItIsWhole) {
  EXPECT_EQ(lines.take("step 1\nst"), "[rank 1] step 1\n");
  EXPECT_EQ(lines.take("ep 2"), "");
  EXPECT_EQ(lines.finish(), "[rank 1] step 2\n");
  EXPECT_EQ(lines.finish(), "");
  EXPECT_THAT(last.lines(), ElementsAre("step 1", "step 2"));
}

TEST_F(OutputLinesTest, AnEmptyLineStays) { EXPECT_EQ(lines.take("\n\n"), "[rank 1] \n[rank 1] \n"); }

TEST_F(OutputLinesTest, AProgressBarLeavesOneLineInTheReport) {
  EXPECT_EQ(lines.take("\r10%\r20%"), "[rank 1] 10%\r");
  EXPECT_EQ(lines.take("\r30%\ndone\n"), "[rank 1] 20%\r[rank 1] 30%\n[rank 1] done\n");
  EXPECT_THAT(last.lines(), ElementsAre("30%", "done"));
}

TEST_F(OutputLinesTest, ACarriageReturnBeforeALineEndIsNoProgressBar) {
  EXPECT_EQ(lines.take("one\r"), "");
  EXPECT_EQ(lines.take("\ntwo\r\n"), "[rank 1] one\r\n[rank 1] two\r\n");
  EXPECT_THAT(last.lines(), ElementsAre("one", "two"));
}

TEST_F(OutputLinesTest, APrefixThatIsThereAlreadyIsNotRepeated) {
  EXPECT_EQ(lines.take("[rank 1] warning: x\n"), "[rank 1] warning: x\n");
}

TEST_F(OutputLinesTest, ALineWithoutEndIsCutSoThatMemoryStaysBounded) {
  const std::string most(OutputLines::kMaxLineBytes, 'x');
  EXPECT_EQ(lines.take(most), "");
  EXPECT_EQ(lines.take("y\n"), "[rank 1] " + most + "\n[rank 1] y\n");
  EXPECT_EQ(lines.take(most + "\n"), "[rank 1] " + most + "\n");
  EXPECT_EQ(last.lines().front().size(), LastLines::kLineBytes + 3);
}

TEST_F(OutputLinesTest, KeepsTheLastTwentyLines) {
  for (int i = 1; i <= 25; ++i) lines.take(std::to_string(i) + "\n");
  EXPECT_EQ(last.lines().size(), 20u);
  EXPECT_EQ(last.lines().front(), "6");
  EXPECT_EQ(last.lines().back(), "25");
}

}  // namespace
}  // namespace tessera::launch::output_lines_test
