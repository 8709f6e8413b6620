#include "tessera/launch/exported_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::launch::exported_environment_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

TEST(ExportedEnvironment, AFileHasAVariableALine) {
  EXPECT_THAT(parse_environment_file({"A=1", "", " B = x=y "}, "f"), ElementsAre(Pair("A", "1"), Pair("B", "x=y")));
  try {
    parse_environment_file({"A=1", "nothing"}, "f");
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.report().where, "f:2");
  }
}

TEST(ExportedEnvironment, VariablesGoToOtherHostsByTheirPrefix) {
  const Environment own = {{"HOME", "/me"}, {"MV2_X", "1"}, {"NCCL_DEBUG", "INFO"}, {"PYTHONPATH", "/p"}};
  EXPECT_THAT(exported_variables(own, {}), ElementsAre(Pair("MV2_X", "1"), Pair("PYTHONPATH", "/p")));
  EXPECT_THAT(exported_variables(own, {"NCCL"}),
              ElementsAre(Pair("MV2_X", "1"), Pair("NCCL_DEBUG", "INFO"), Pair("PYTHONPATH", "/p")));
}

TEST(ExportedEnvironment, AnAiscJobKeepsItsHostsOwnDevices) {
  const Environment own = {{"AISC_JOB_NAME", "j"}, {"NCCL_IB_HCA", "x"}, {"UCX_NET_DEVICES", "y"}, {"UCX_TLS", "t"}};
  EXPECT_THAT(exported_variables(own, {"NCCL"}), ElementsAre(Pair("UCX_TLS", "t")));
}

TEST(ExportedEnvironment, ASecretIsNeverOnACommandLine) {
  const Environment open = {{"TESSERA_SECRET", "0123456789abcdef"}};
  EXPECT_THAT(exported_variables(open, {}), IsEmpty());
  EXPECT_THROW(require_no_open_secret(open), Error);
  const Environment file = {{"TESSERA_SECRET_FILE", "/home/me/secret"}};
  EXPECT_THAT(exported_variables(file, {}), ElementsAre(Pair("TESSERA_SECRET_FILE", "/home/me/secret")));
  EXPECT_NO_THROW(require_no_open_secret(file));
}

TEST(ExportedEnvironment, PythonFindsModulesOfTheFolderFirst) {
  EXPECT_EQ(python_path_with("/run", {}), "/run");
  EXPECT_EQ(python_path_with("/run", {{"PYTHONPATH", "/a:/b"}}), "/run:/a:/b");
}

}  // namespace
}  // namespace tessera::launch::exported_environment_test
