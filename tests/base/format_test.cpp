#include "tessera/base/format.h"

#include <gtest/gtest.h>

namespace tessera::format_test {
namespace {

TEST(Format, BytesAreDecimal) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(999), "999 B");
  EXPECT_EQ(format_bytes(1500), "1.50 kB");
  EXPECT_EQ(format_bytes(22'700'000), "22.7 MB");
  EXPECT_EQ(format_bytes(1'750'000'000), "1.75 GB");
}

TEST(Format, DurationsUseTheUnitsPeopleUse) {
  using std::chrono::duration;
  EXPECT_EQ(format_duration(duration<double>(0.42)), "0.42 s");
  EXPECT_EQ(format_duration(duration<double>(200)), "3 min 20 s");
  EXPECT_EQ(format_duration(duration<double>(7500)), "2 h 05 min");
}

TEST(Format, CountsHaveCommas) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(12480), "12,480");
  EXPECT_EQ(format_count(-1234567), "-1,234,567");
}

TEST(Format, CountsAgreeWithTheirNouns) {
  EXPECT_EQ(count_of(0, "sample"), "0 samples");
  EXPECT_EQ(count_of(1, "sample"), "1 sample");
  EXPECT_EQ(count_of(4358, "sample"), "4,358 samples");
  EXPECT_EQ(count_of(1, "process", "processes"), "1 process");
  EXPECT_EQ(count_of(2, "process", "processes"), "2 processes");
}

}  // namespace
}  // namespace tessera::format_test
