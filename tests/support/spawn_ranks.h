// Runs a function on several real processes, as ranks of one run on this host.
//
//   spawn_ranks(4, [](comm::Group& world) { … EXPECT_EQ(…); });
//
// Forks before any LibTorch thread exists in the child; each child joins through a free port and runs the body; a
// failed expectation, an exception or a signal in any rank fails the calling test with all ranks' output. A rank that
// does not end within the deadline is killed and named. TESSERA_TIMEOUT in the ranks is `timeout`.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tessera::comm {
class Group;
struct World;
}  // namespace tessera::comm

namespace tessera::test {

using RankBody = std::function<void(std::shared_ptr<comm::Group>)>;

struct RankOutcome {
  int exit_code = 0;  // 128 + signal where a signal ended it
  std::string output;
};

struct SpawnOptions {
  std::chrono::milliseconds deadline{120'000};
  std::chrono::seconds timeout{60};
  int ranks_a_host = 0;      // as the ranks see it (their local rank, TESSERA_HOST); 0: one host
  std::string backend = {};  // InitOptions::backend
  std::function<void(int rank)> before_joining = {};
  std::function<std::shared_ptr<comm::Group>(const comm::World& world)> join = {};  // instead of init_distributed
};

// Every rank must succeed; where one skips (GTEST_SKIP in its body), the calling test is skipped.
void spawn_ranks(int count, const RankBody& body, const SpawnOptions& options = {});

// For tests of failures: what became of each rank.
std::vector<RankOutcome> outcomes_of_ranks(int count, const RankBody& body, const SpawnOptions& options = {});

}  // namespace tessera::test
