#include "tessera/comm/rendezvous.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/unique_fd.h"
#include "tessera/comm/group.h"
#include "tessera/comm/store/run_store.h"
#include "tessera/comm/store/store_listener.h"
#include "tessera/comm/store/store_server.h"
#include "tests/support/spawn_ranks.h"

namespace tessera::comm::rendezvous_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Sets variables for one test and removes them, and all others that rendezvous reads, afterwards.
class WorldFromEnvironment : public testing::Test {
 protected:
  void SetUp() override { clear(); }
  void TearDown() override { clear(); }

  static void set(const std::map<std::string, std::string>& variables) {
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
  }

 private:
  static void clear() {
    for (const char* name : {"RANK",
                             "WORLD_SIZE",
                             "LOCAL_RANK",
                             "LOCAL_WORLD_SIZE",
                             "MASTER_ADDR",
                             "MASTER_PORT",
                             "SLURM_PROCID",
                             "SLURM_NTASKS",
                             "SLURM_LOCALID",
                             "SLURM_JOB_NODELIST",
                             "SLURM_JOB_ID",
                             "SLURM_STEP_ID",
                             "SLURM_NODEID",
                             "SLURM_STEP_NUM_NODES",
                             "SLURM_STEP_TASKS_PER_NODE",
                             "OMPI_COMM_WORLD_RANK",
                             "OMPI_COMM_WORLD_SIZE",
                             "OMPI_COMM_WORLD_LOCAL_RANK",
                             "OMPI_COMM_WORLD_LOCAL_SIZE",
                             "PMI_RANK",
                             "PMI_SIZE",
                             "MPI_LOCALRANKID",
                             "MPI_LOCALNRANKS",
                             "TORCHELASTIC_USE_AGENT_STORE"}) {
      unsetenv(name);
    }
  }
};

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST_F(WorldFromEnvironment, WithoutAnyVariableIsAWorldOfOne) {
  const World world = world_from_environment();
  EXPECT_EQ(world.size, 1);
  EXPECT_EQ(world.rank, 0);
  EXPECT_EQ(init_distributed()->size(), 1);
}

TEST_F(WorldFromEnvironment, ReadsTorchrunsVariables) {
  set({{"RANK", "3"},
       {"WORLD_SIZE", "8"},
       {"LOCAL_RANK", "1"},
       {"MASTER_ADDR", "node0"},
       {"MASTER_PORT", "1234"},
       {"TORCHELASTIC_USE_AGENT_STORE", "True"}});
  const World world = world_from_environment();
  EXPECT_EQ(world.rank, 3);
  EXPECT_EQ(world.size, 8);
  EXPECT_EQ(world.local_rank, 1);
  EXPECT_EQ(world.master_addr, "node0");
  EXPECT_EQ(world.master_port, 1234);
  EXPECT_TRUE(world.store_is_running);
}

TEST_F(WorldFromEnvironment, ReadsWhatSlurmTellsATaskAndNotWhatItTellsABatchScript) {
  set({{"SLURM_JOB_ID", "7"},
       {"SLURM_PROCID", "2"},
       {"SLURM_NTASKS", "4"},
       {"SLURM_LOCALID", "0"},
       {"SLURM_JOB_NODELIST", "gpu[03-05,9],login1"}});
  EXPECT_EQ(world_from_environment().size, 1);
  EXPECT_EQ(launcher_of_environment(), "");
  set({{"SLURM_STEP_ID", "0"},
       {"SLURM_NODEID", "1"},
       {"SLURM_STEP_NUM_NODES", "2"},
       {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"}});
  const World world = world_from_environment();
  EXPECT_EQ(launcher_of_environment(), "Slurm");
  EXPECT_EQ(world.rank, 2);
  EXPECT_EQ(world.size, 4);
  EXPECT_EQ(world.local_size, 2);
  EXPECT_EQ(world.master_addr, "gpu03");
  EXPECT_EQ(ranks_of_this_host(), 2);
}

// Slurm's PMI sets variables of MPICH's names in every task.
TEST_F(WorldFromEnvironment, ATaskOfSlurmNeedsNoMpiAndVariablesOfALauncherWithinItWin) {
  set({{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}, {"SLURM_LOCALID", "1"}});
  set({{"SLURM_JOB_NODELIST", "a"}, {"PMI_RANK", "1"}, {"PMI_SIZE", "2"}});
  EXPECT_EQ(world_from_environment().master_addr, "a");
  set({{"RANK", "0"}, {"WORLD_SIZE", "3"}, {"MASTER_ADDR", "b"}});
  EXPECT_EQ(world_from_environment().size, 3);
  EXPECT_EQ(launcher_of_environment(), "torchrun");
}

TEST_F(WorldFromEnvironment, ReadsMpisVariables) {
  set({{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}});
  EXPECT_EQ(world_from_environment().rank, 1);
}

// Rank 4 of 6, the second of three on the second host, whoever starts it; the variables are those that each launcher
// was seen to set.
TEST_F(WorldFromEnvironment, EveryWayOfStartingMakesTheSameRank) {
  using Variables = std::map<std::string, std::string>;
  const std::pair<const char*, Variables> ways[] = {
      {"tessera launch, deepspeed",
       {{"RANK", "4"},
        {"WORLD_SIZE", "6"},
        {"LOCAL_RANK", "1"},
        {"LOCAL_WORLD_SIZE", "3"},
        {"MASTER_ADDR", "node0"},
        {"MASTER_PORT", "29500"}}},
      {"torchrun",
       {{"RANK", "4"},
        {"WORLD_SIZE", "6"},
        {"LOCAL_RANK", "1"},
        {"LOCAL_WORLD_SIZE", "3"},
        {"MASTER_ADDR", "node0"},
        {"MASTER_PORT", "29500"},
        {"TORCHELASTIC_USE_AGENT_STORE", "True"}}},
      {"srun",
       {{"SLURM_JOB_ID", "7"},
        {"SLURM_STEP_ID", "0"},
        {"SLURM_NODEID", "1"},
        {"SLURM_PROCID", "4"},
        {"SLURM_NTASKS", "6"},
        {"SLURM_LOCALID", "1"},
        {"SLURM_JOB_NODELIST", "node[0-1]"},
        {"SLURM_STEP_NUM_NODES", "2"},
        {"SLURM_STEP_TASKS_PER_NODE", "3(x2)"},
        {"MASTER_PORT", "29500"}}},
      {"OpenMPI's mpirun",
       {{"OMPI_COMM_WORLD_RANK", "4"},
        {"OMPI_COMM_WORLD_SIZE", "6"},
        {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
        {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"},
        {"MASTER_ADDR", "node0"}}},
      {"MPICH's mpirun",
       {{"PMI_RANK", "4"},
        {"PMI_SIZE", "6"},
        {"MPI_LOCALRANKID", "1"},
        {"MPI_LOCALNRANKS", "3"},
        {"MASTER_ADDR", "node0"}}},
  };
  for (const auto& [way, variables] : ways) {
    SCOPED_TRACE(way);
    TearDown();
    set(variables);
    const World world = world_from_environment();
    EXPECT_EQ(world.rank, 4);
    EXPECT_EQ(world.size, 6);
    EXPECT_EQ(world.local_rank, 1);
    EXPECT_EQ(world.local_size, 3);
    EXPECT_EQ(ranks_of_this_host(), 3);
    EXPECT_EQ(world.master_addr, "node0");
    EXPECT_EQ(world.master_port, 29500);
    EXPECT_EQ(world.store_is_running, std::string(way) == "torchrun");
  }
}

// A pod of Kubernetes, or a notebook's process: a rank a host, and nothing said of the host.
TEST_F(WorldFromEnvironment, PlainVariablesNeedNoneOfTheHost) {
  set({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "bert-0.bert"}, {"MASTER_PORT", "29501"}});
  const World world = world_from_environment();
  EXPECT_EQ(world.rank, 1);
  EXPECT_EQ(world.size, 2);
  EXPECT_EQ(world.master_addr, "bert-0.bert");
  EXPECT_EQ(world.master_port, 29501);
  EXPECT_FALSE(world.store_is_running);
  TearDown();
  set({{"RANK", "0"}, {"WORLD_SIZE", "1"}});  // a world of one needs no address
  EXPECT_EQ(world_from_environment().size, 1);
}

TEST_F(WorldFromEnvironment, RefusesARankOutsideTheWorld) {
  set({{"RANK", "2"}, {"WORLD_SIZE", "2"}});
  EXPECT_THAT(error_of(world_from_environment), HasSubstr("RANK=2 is out of range for WORLD_SIZE=2"));
}

TEST_F(WorldFromEnvironment, RefusesHalfAnAnswer) {
  set({{"RANK", "0"}});
  EXPECT_THAT(error_of(world_from_environment), HasSubstr("RANK is set but WORLD_SIZE is not"));
}

TEST_F(WorldFromEnvironment, SaysThatMasterAddrIsMissing) {
  set({{"RANK", "0"}, {"WORLD_SIZE", "2"}});
  EXPECT_THAT(error_of(world_from_environment), HasSubstr("MASTER_ADDR is not set"));
}

TEST_F(WorldFromEnvironment, RefusesWhatIsNoNumber) {
  set({{"RANK", "zero"}, {"WORLD_SIZE", "2"}});
  EXPECT_THAT(error_of(world_from_environment), HasSubstr("RANK is 'zero', not a whole number"));
}

// A TCP socket on a port that nobody else has.
class Port {
 public:
  Port() {
    address_.sin_family = AF_INET;
    address_.sin_addr.s_addr = htonl(INADDR_ANY);
    socklen_t length = sizeof(address_);
    check(bind(socket_.get(), reinterpret_cast<sockaddr*>(&address_), length));
    check(getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address_), &length));
  }
  void listen() { check(::listen(socket_.get(), 1)); }
  int number() const { return ntohs(address_.sin_port); }

 private:
  static void check(int result) { ASSERT_EQ(result, 0); }

  UniqueFd socket_{socket(AF_INET, SOCK_STREAM, 0)};
  sockaddr_in address_{};
};

TEST(Rendezvous, APortInUseIsAnErrorOfTheMachine) {
  Port taken;
  taken.listen();
  const World world{.rank = 0, .size = 2, .master_addr = "127.0.0.1", .master_port = taken.number()};
  try {
    init_distributed(world, {.timeout = std::chrono::seconds(2)});
    FAIL() << "did not throw";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kMachine) << error.what();
    EXPECT_THAT(error.what(), HasSubstr("already in use"));
  }
}

// As a port forwarder without anything behind it does.
TEST(Rendezvous, APortThatAcceptsAndStaysSilentEndsTheWait) {
  Port silent;
  silent.listen();
  const World world{.rank = 1, .size = 2, .master_addr = "127.0.0.1", .master_port = silent.number()};
  const std::string error = error_of([&] { init_distributed(world, {.timeout = std::chrono::seconds(1)}); });
  EXPECT_THAT(error, HasSubstr("does not answer (1.00 s)"));
  EXPECT_THAT(error, HasSubstr("MASTER_PORT"));
}

TEST(Rendezvous, ARankThatIsAheadOfRank0WaitsForIt) {
  const int port = Port().number();  // on which nobody listens any more
  std::unique_ptr<StoreServer> server;
  std::thread late([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    StoreListener listener = listen_for_ranks("127.0.0.1", port, true);
    server = std::make_unique<StoreServer>(std::move(listener.socket), "here", "", 2);
  });
  const auto store =
      c10::make_intrusive<RunStore>(StorePlace{.host = "localhost", .port = port, .rank = 1}, std::chrono::minutes(1));
  late.join();
  EXPECT_EQ(store->add("sum", 2), 2);
}

TEST(Rendezvous, AHostOrAPortWithoutRank0EndsTheWait) {
  const World nobody{.rank = 1, .size = 2, .master_addr = "127.0.0.1", .master_port = Port().number()};
  EXPECT_THAT(
      error_of([&] { init_distributed(nobody, {.timeout = std::chrono::seconds(1)}); }),
      AllOf(HasSubstr(fmt::format("rank 1 could not reach rank 0's rendezvous: no rank 0 listens on 127.0.0.1:{}",
                                  nobody.master_port)),
            HasSubstr("is rank 0 started, and does it have the same MASTER_ADDR and MASTER_PORT?")));
  const World nowhere{.rank = 1, .size = 2, .master_addr = "no-such-host.invalid", .master_port = 29500};
  EXPECT_THAT(error_of([&] { init_distributed(nowhere, {.timeout = std::chrono::seconds(1)}); }),
              HasSubstr("could not reach rank 0's rendezvous: the name 'no-such-host.invalid' has no address here"));
}

// The kernel drops what asks for a connection where as many as a listener may have wait already, as a firewall does.
TEST(Rendezvous, APortWhereAFirewallDropsEverythingIsToldFromOneWhereNobodyListens) {
  Port full;
  full.listen();
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(full.number()));
  std::vector<UniqueFd> waiting;
  for (int i = 0; i < 8; ++i) {
    waiting.emplace_back(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    connect(waiting.back().get(), reinterpret_cast<sockaddr*>(&address), sizeof(address));
  }
  const World world{.rank = 1, .size = 2, .master_addr = "127.0.0.1", .master_port = full.number()};
  EXPECT_THAT(
      error_of([&] { init_distributed(world, {.timeout = std::chrono::seconds(1)}); }),
      AllOf(HasSubstr("could not reach rank 0's rendezvous: nothing comes back from 127.0.0.1:"),
            HasSubstr("a firewall or a route drops what is sent there"), HasSubstr("let ranks connect to port")));
}

// Rank 1 comes a moment after rank 0, whose time is over first, and which takes the store along.
TEST(Rendezvous, WhenARankIsMissingAllOthersSayWhichCameAndWhichDidNot) {
  const auto outcomes = test::outcomes_of_ranks(4, [](const std::shared_ptr<Group>&) {},
                                                {.timeout = std::chrono::seconds(3), .before_joining = [](int rank) {
                                                   if (rank == 2) _exit(0);
                                                   if (rank == 1) std::this_thread::sleep_for(std::chrono::seconds(1));
                                                 }});
  for (const size_t rank : {0, 1, 3}) {
    EXPECT_EQ(outcomes[rank].exit_code, 1);
    EXPECT_THAT(outcomes[rank].output, HasSubstr("rank 2 did not join the run within 3 s; ranks 0, 1, 3 did"));
  }
  EXPECT_THAT(outcomes[1].output, HasSubstr("as rank 0 found"));
}

TEST(Rendezvous, RanksOfDifferentWorldsAreToldApartAtOnce) {
  const auto outcomes = test::outcomes_of_ranks(
      2, [](const std::shared_ptr<Group>&) {},
      {.before_joining = [](int rank) { setenv("TESSERA_BACKEND", rank == 0 ? "gloo" : "shm", 1); }});
  for (const auto& outcome : outcomes) {
    EXPECT_EQ(outcome.exit_code, 1);
    EXPECT_THAT(outcome.output,
                HasSubstr("rank 0 runs with TESSERA_BACKEND=gloo, and rank 1 with TESSERA_BACKEND=shm"));
  }
}

// Of this process, from lines of /proc/net/tcp: number, local address with its bytes turned round, remote one, state, …
std::vector<std::string> addresses_listened_at() {
  std::set<std::string> own;  // "socket:[INODE]"
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code ignored;
    own.insert(std::filesystem::read_symlink(entry.path(), ignored).string());
  }
  std::vector<std::string> found;
  for (const char* const table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(table);
    for (std::string line; std::getline(file, line);) {
      std::istringstream stream(line);
      const std::vector<std::string> words{std::istream_iterator<std::string>(stream), {}};
      const bool listens = words.size() > 9 && words[3] == "0A" && own.contains("socket:[" + words[9] + "]");
      if (listens) found.push_back(words[1].substr(0, words[1].find(':')));
    }
  }
  return found;
}

TEST(Rendezvous, ARunOnOneHostListensOnTheLoopbackAlone) {
  for (const char* const backend : {"shm", "gloo"}) {
    test::spawn_ranks(2,
                      [backend](const std::shared_ptr<Group>& world) {
                        const auto addresses = addresses_listened_at();
                        EXPECT_THAT(addresses, testing::Each("0100007F"));
                        EXPECT_EQ(addresses.empty(),
                                  world->rank() == 1 && std::string(backend) == "shm");  // gloo's ranks all listen
                        world->barrier("seen");
                      },
                      {.backend = backend});
  }
}

TEST(Rendezvous, TheStoreListensWhereTheOthersWillLook) {
  using Reach = StoreListener::Reach;
  EXPECT_EQ(listen_for_ranks("localhost", 0, true).reach, Reach::kLoopback);
  // Elsewhere 127.0.1.1 is another host, and 192.0.2.1 is a service before this one: not its own address.
  EXPECT_EQ(listen_for_ranks("127.0.1.1", 0, /*all_here=*/false).reach, Reach::kEveryAddress);
  EXPECT_EQ(listen_for_ranks("192.0.2.1", 0, false).reach, Reach::kEveryAddress);
  const StoreListener taken = listen_for_ranks("127.0.0.1", 0, true);
  EXPECT_THAT(error_of([&] { listen_for_ranks("127.0.0.1", taken.port, true); }), HasSubstr("already in use"));
}

}  // namespace
}  // namespace tessera::comm::rendezvous_test
