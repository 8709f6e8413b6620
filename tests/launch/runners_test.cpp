#include "tessera/launch/runners.h"

#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::launch::runners_test {
namespace {

TEST(Runners, AnUnknownOneIsAnErrorWithTheNearestAndNothingStarts) {
  try {
    launch({.nproc = 2, .command = {"true"}}, "lokal");
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_EQ(error.report().what, "there is no runner 'lokal'");
    EXPECT_EQ(error.report().fix, "did you mean 'local'? known: local");
  }
}

}  // namespace
}  // namespace tessera::launch::runners_test
