#include "tessera/base/error.h"

#include <gtest/gtest.h>

#include "tessera/base/deadline.h"
#include "tessera/base/registry.h"

namespace tessera::error_test {
namespace {

TEST(Error, PrintsWhatWhereAndFix) {
  const Error error(ErrorKind::kConfig, {"'stage' is 4", "ds.json:12:14", "use 0, 1, 2 or 3"});
  EXPECT_STREQ(error.what(), "'stage' is 4\n  where: ds.json:12:14\n  fix:   use 0, 1, 2 or 3");
  EXPECT_EQ(exit_code(error.kind()), 2);
}

TEST(Error, LeavesOutWhatIsEmpty) {
  EXPECT_STREQ(Error(ErrorKind::kPeer, {"rank 1 is gone", "", ""}).what(), "rank 1 is gone");
}

TEST(Error, ShowsWhatATerminalWouldObey) {
  EXPECT_STREQ(Error(ErrorKind::kData, {"a name '\x1b[2J\x7f\r'\n\tä", "", ""}).what(),
               "a name '\\x1b[2J\\x7f\\x0d'\n\tä");
}

TEST(Error, QuotesNoWholeFile) {
  const std::string start(2999, 'a');
  EXPECT_STREQ(Error(ErrorKind::kData, {start + "ä" + "bcd", "", ""}).what(),
               (start + "ä" + "… (3 more bytes)").c_str());
  EXPECT_EQ(Error(ErrorKind::kData, {start + "b", "", ""}).what(), start + "b");
}

TEST(Error, AnInvariantIsOurBugAndNotTheUsers) {
  try {
    TESSERA_INVARIANT(1 + 1 == 3);
    FAIL() << "did not throw";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInternal);
    EXPECT_EQ(exit_code(error.kind()), 1);
    EXPECT_NE(std::string(error.what()).find("1 + 1 == 3"), std::string::npos);
  }
}

TEST(Deadline, NamesWhatItWaitedFor) {
  const Deadline passed(std::chrono::milliseconds(0), "rank 3 to join");
  EXPECT_TRUE(passed.expired());
  try {
    passed.check();
    FAIL() << "did not throw";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "waited 0.00 s for rank 3 to join");
  }
}

TEST(Registry, ForgivesCaseAndSuggestsTheNearest) {
  static constexpr Registry<int>::Entry kEntries[] = {{"Adam", "", 1}, {"Lion", "", 2}};
  static constexpr Registry<int> table("optimizer", kEntries);
  EXPECT_EQ(table.find("adam", "").make, 1);
  try {
    table.find("Lyon", "ds.json:3:9");
    FAIL() << "did not throw";
  } catch (const Error& error) {
    EXPECT_EQ(error.report().fix, "did you mean 'Lion'? known: Adam, Lion");
    EXPECT_EQ(error.report().where, "ds.json:3:9");
  }
}

}  // namespace
}  // namespace tessera::error_test
