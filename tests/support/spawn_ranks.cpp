#include "tests/support/spawn_ranks.h"

#include <ATen/Parallel.h>
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "tessera/base/error.h"
#include "tessera/comm/group.h"
#include "tessera/comm/rendezvous.h"

namespace tessera::test {
namespace {

using std::chrono::steady_clock;

// A fork takes no threads along, so a child of a process with an OpenMP pool would wait for it for ever.
const bool kSingleThreaded = [] {
  at::set_num_threads(1);
  return true;
}();

int free_port() {
  const int socket_fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  TESSERA_INVARIANT(bind(socket_fd, reinterpret_cast<sockaddr*>(&address), length) == 0);
  TESSERA_INVARIANT(getsockname(socket_fd, reinterpret_cast<sockaddr*>(&address), &length) == 0);
  close(socket_fd);
  return ntohs(address.sin_port);
}

// The exit code of a rank whose body called GTEST_SKIP.
constexpr int kSkipped = 77;

[[noreturn]] void run_rank(int rank, int count, int port, const RankBody& body, const SpawnOptions& options) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  setenv("OMP_NUM_THREADS", "1", 1);
  at::set_num_threads(1);  // LibTorch renews its pool of threads in a forked process, on one thread at a time
  int code = 0;
  try {
    const int local_rank = options.ranks_a_host == 0 ? rank : rank % options.ranks_a_host;
    if (options.ranks_a_host > 0) setenv("TESSERA_HOST", std::to_string(rank / options.ranks_a_host).c_str(), 1);
    const comm::World world{
        .rank = rank, .local_rank = local_rank, .size = count, .master_addr = "127.0.0.1", .master_port = port};
    if (options.before_joining) options.before_joining(rank);
    auto group = options.join ? options.join(world)
                              : comm::init_distributed(world, {.timeout = options.timeout, .backend = options.backend});
    body(group);
    group->barrier("end of the test");
  } catch (const std::exception& error) {
    std::printf("exception: %s\n", error.what());
    code = 1;
  }
  if (testing::Test::HasFailure()) code = 1;
  if (code == 0 && testing::Test::IsSkipped()) code = kSkipped;
  std::fflush(stdout);
  std::fflush(stderr);
  _exit(code);
}

struct Rank {
  pid_t pid;
  int output_fd;
  RankOutcome outcome;
};

void read_output(Rank& rank) {
  char buffer[4096];
  const ssize_t count = read(rank.output_fd, buffer, sizeof(buffer));
  if (count > 0) {
    rank.outcome.output.append(buffer, count);
  } else {
    close(rank.output_fd);
    rank.output_fd = -1;
  }
}

}  // namespace

std::vector<RankOutcome> outcomes_of_ranks(int count, const RankBody& body, const SpawnOptions& options) {
  TESSERA_INVARIANT(kSingleThreaded && at::get_num_threads() == 1);
  const int port = free_port();
  std::vector<Rank> ranks;
  std::fflush(stdout);
  for (int index = 0; index < count; ++index) {
    int ends[2];
    TESSERA_INVARIANT(pipe(ends) == 0);
    const pid_t pid = fork();
    if (pid == 0) {
      dup2(ends[1], STDOUT_FILENO);
      dup2(ends[1], STDERR_FILENO);
      close(ends[0]);
      close(ends[1]);
      run_rank(index, count, port, body, options);
    }
    close(ends[1]);
    ranks.push_back({pid, ends[0], {}});
  }
  const auto end = steady_clock::now() + options.deadline;
  for (;;) {
    std::vector<pollfd> open;
    for (const Rank& rank : ranks) {
      if (rank.output_fd >= 0) open.push_back({rank.output_fd, POLLIN, 0});
    }
    if (open.empty()) break;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - steady_clock::now()).count();
    if (left <= 0) {
      for (Rank& rank : ranks) {
        if (rank.output_fd >= 0) rank.outcome.output += "\n(killed: the deadline of the test passed)";
        kill(rank.pid, SIGKILL);
      }
      break;
    }
    poll(open.data(), open.size(), static_cast<int>(std::min<long>(left, 1000)));
    for (const pollfd& ready : open) {
      if (ready.revents == 0) continue;
      for (Rank& rank : ranks) {
        if (rank.output_fd == ready.fd) read_output(rank);
      }
    }
  }
  std::vector<RankOutcome> outcomes;
  for (Rank& rank : ranks) {
    int status = 0;
    waitpid(rank.pid, &status, 0);
    if (rank.output_fd >= 0) close(rank.output_fd);
    rank.outcome.exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    outcomes.push_back(std::move(rank.outcome));
  }
  return outcomes;
}

void spawn_ranks(int count, const RankBody& body, const SpawnOptions& options) {
  const auto outcomes = outcomes_of_ranks(count, body, options);
  const RankOutcome* skipped = nullptr;
  for (size_t rank = 0; rank < outcomes.size(); ++rank) {
    if (outcomes[rank].exit_code == kSkipped) {
      skipped = &outcomes[rank];
      continue;
    }
    EXPECT_EQ(outcomes[rank].exit_code, 0) << "rank " << rank << " of " << count << " said:\n" << outcomes[rank].output;
  }
  if (skipped != nullptr) GTEST_SKIP() << "a rank skipped it:\n" << skipped->output;
}

}  // namespace tessera::test
