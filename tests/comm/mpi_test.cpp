// Which MPI a process takes, and what it says where there is none. What it does with one: test_mpi.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>

#include "tessera/base/error.h"
#include "tessera/comm/group.h"
#include "tessera/comm/mpi/library.h"
#include "tessera/comm/rendezvous.h"

namespace tessera::comm::mpi_test {
namespace {

using testing::HasSubstr;

constexpr const char* kVariables[] = {
    "TESSERA_MPI", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK",      "PMI_SIZE", "PMI_RANK", "PMIX_RANK",
    "MASTER_ADDR", "TESSERA_BACKEND",      "OMPI_COMM_WORLD_LOCAL_SIZE"};

class LauncherOfMpi : public testing::Test {
 protected:
  void SetUp() override { clear(); }
  void TearDown() override { clear(); }

  static void clear() {
    for (const char* name : kVariables) unsetenv(name);
  }
};

Error error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  return {ErrorKind::kInternal, {"no error", "", ""}};
}

TEST_F(LauncherOfMpi, IsKnownByItsVariables) {
  setenv("PMI_SIZE", "2", 1);
  EXPECT_EQ(mpi::name_of_launcher(), "mpich");
  setenv("OMPI_COMM_WORLD_SIZE", "2", 1);  // OpenMPI under Slurm sees those of both
  EXPECT_EQ(mpi::name_of_launcher(), "openmpi");
  setenv("TESSERA_MPI", "MPICH", 1);
  EXPECT_EQ(mpi::name_of_launcher(), "mpich");
}

TEST_F(LauncherOfMpi, OfNoKnownNameIsRefusedWithTheNearest) {
  setenv("TESSERA_MPI", "openmp", 1);
  const Error error = error_of([] { mpi::name_of_launcher(); });
  EXPECT_EQ(exit_code(error.kind()), 2);
  EXPECT_THAT(error.what(), HasSubstr("did you mean 'openmpi'?"));
}

TEST_F(LauncherOfMpi, ThatIsNotThereIsAnErrorThatSaysHowToStart) {
  const World world{.rank = 0, .size = 2};
  const Error error = error_of([&] { init_distributed(world, {.backend = "mpi"}); });
  EXPECT_EQ(exit_code(error.kind()), 2);
  EXPECT_THAT(error.what(), HasSubstr("the mpi backend needs ranks started by mpirun"));
  EXPECT_THAT(error.report().fix, HasSubstr("mpirun -n <ranks> tessera train"));
}

TEST_F(LauncherOfMpi, MakesMasterAddrNeedlessWhereItsPluginIsThereOrAllRanksAreOnOneHost) {
  setenv("OMPI_COMM_WORLD_RANK", "0", 1);
  setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
  setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "1", 1);
  setenv("TESSERA_BACKEND", "mpi", 1);
  EXPECT_EQ(world_from_environment().master_addr, "");
  unsetenv("TESSERA_BACKEND");
  if (mpi::has_plugin_of_launcher()) {
    EXPECT_EQ(world_from_environment().master_addr, "");
    return;
  }
  const Error error = error_of([] { world_from_environment(); });
  EXPECT_EQ(exit_code(error.kind()), 2);
  EXPECT_THAT(error.what(), HasSubstr("MASTER_ADDR is not set"));
  EXPECT_THAT(error.report().fix, HasSubstr("MASTER_ADDR=<host of rank 0>"));
  setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "2", 1);
  EXPECT_EQ(world_from_environment().master_addr, "127.0.0.1");
}

}  // namespace
}  // namespace tessera::comm::mpi_test
