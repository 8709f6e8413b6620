// NCCL itself, as the packages of a LibTorch for CUDA bring it: what can be asked of it without a GPU. Built only where
// there is one (tests/comm/CMakeLists.txt).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tessera/comm/nccl/library.h"

namespace tessera::comm::nccl_library_test {
namespace {

TEST(RealNccl, HasEachFunctionThatIsCalledAndCallsItsErrorsAsWeDo) {
  const nccl::Library library = nccl::load_library(TESSERA_REAL_NCCL);
  EXPECT_THAT(library.name, testing::StartsWith("NCCL 2."));
  EXPECT_STREQ(library.get_error_string(nccl::Result::kSuccess), "no error");
  EXPECT_THAT(library.get_error_string(nccl::Result::kInProgress), testing::HasSubstr("in progress"));
  EXPECT_THAT(library.get_error_string(nccl::Result::kRemoteError), testing::HasSubstr("remote process"));
}

}  // namespace
}  // namespace tessera::comm::nccl_library_test
