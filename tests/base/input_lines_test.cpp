#include "tessera/base/input_lines.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "tessera/base/unique_fd.h"

namespace tessera::input_lines_test {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kNow{0};

class Lines : public testing::Test {
 protected:
  Lines() {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    out_ = UniqueFd(ends[0]);
    in_ = UniqueFd(ends[1]);
  }
  void write(const std::string& text) {
    ASSERT_EQ(::write(in_.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  void end() { in_ = UniqueFd(); }

  UniqueFd out_, in_;
};

TEST_F(Lines, ComeOneByOneHoweverTheyArrive) {
  InputLines lines(out_.get());
  write("one\r\ntwo\n\nthr");
  EXPECT_EQ(lines.next(kNow), "one");
  EXPECT_EQ(lines.next(kNow), "two");
  EXPECT_EQ(lines.next(kNow), "");
  EXPECT_EQ(lines.next(milliseconds(20)), std::nullopt);
  EXPECT_FALSE(lines.has_ended());
  write("ee\nfour");
  EXPECT_EQ(lines.next(kNow), "three");
  EXPECT_EQ(lines.next(kNow), std::nullopt);
  end();
  EXPECT_EQ(lines.next(kNow), "four");  // which has no end
  EXPECT_EQ(lines.next(kNow), std::nullopt);
  EXPECT_TRUE(lines.has_ended());
}

TEST_F(Lines, OfNothingAreNone) {
  InputLines lines(out_.get());
  end();
  EXPECT_EQ(lines.next(kNow), std::nullopt);
  EXPECT_TRUE(lines.has_ended());
}

TEST_F(Lines, MayBeLongerThanWhatIsReadAtOnce) {
  InputLines lines(out_.get());
  const std::string text(30'000, 'x');
  write(text + "\n");
  EXPECT_EQ(lines.next(milliseconds(1000)), text);
}

}  // namespace
}  // namespace tessera::input_lines_test
