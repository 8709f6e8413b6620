// A rank that is stopped (SIGSTOP) answers nobody, and its connections stay open. Whatever the others wait for then has
// an end, also where rank 0, which serves the store, is the one.
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "tessera/base/error.h"
#include "tessera/comm/group.h"
#include "tests/support/spawn_ranks.h"

namespace tessera::comm::frozen_rank_test {
namespace {

using testing::HasSubstr;
using Body = std::function<void(Group&)>;

// Of the two ranks one stops when both have joined, until the other has ended.
class Freeze {
 public:
  explicit Freeze(int frozen) : frozen_(frozen), pid_(new(shared_page()) std::atomic<pid_t>(0)) {}

  // What the other rank's error says.
  std::string error_of_other(const Body& body, const std::string& backend) {
    const auto outcomes = test::outcomes_of_ranks(
        2,
        [&](const std::shared_ptr<Group>& world) {
          world->barrier("all are there");
          if (world->rank() == frozen_) {
            pid_->store(getpid());
            raise(SIGSTOP);
            return;
          }
          while (!is_stopped()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
          std::string text = "no error";
          try {
            body(*world);
          } catch (const Error& error) {
            text = error.what();
          }
          std::printf("said: %s\n", text.c_str());
          std::fflush(stdout);
          kill(pid_->load(), SIGKILL);
          _exit(0);
        },
        {.deadline = std::chrono::minutes(1), .timeout = std::chrono::seconds(2), .backend = backend});
    const std::string& output = outcomes[static_cast<size_t>(1 - frozen_)].output;
    const size_t said = output.find("said: ");
    return said == std::string::npos ? "hung: " + output : output.substr(said);
  }

 private:
  static void* shared_page() {
    return mmap(nullptr, sizeof(std::atomic<pid_t>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  }

  bool is_stopped() const {
    const pid_t pid = pid_->load();
    if (pid == 0) return false;
    char path[64], line[512] = "";
    std::snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    std::FILE* const file = std::fopen(path, "r");
    if (file == nullptr) return false;
    const size_t length = std::fread(line, 1, sizeof(line) - 1, file);
    std::fclose(file);
    const std::string text(line, length);
    const size_t state = text.rfind(')') + 2;
    return state < text.size() && text[state] == 'T';
  }

  int frozen_;
  std::atomic<pid_t>* pid_;
};

class FrozenRank : public testing::TestWithParam<std::tuple<int, std::string>> {};

TEST_P(FrozenRank, EndsACollectiveOfTheOthers) {
  const auto& [frozen, backend] = GetParam();
  const std::string error = Freeze(frozen).error_of_other(
      [](Group& world) {
        auto buffer = at::ones({64});
        world.start_all_reduce(buffer, 1.0, "gradients").finish();
      },
      backend);
  EXPECT_THAT(error, HasSubstr("rank " + std::to_string(frozen) + " did not join"));
  EXPECT_THAT(error, HasSubstr("gradients"));
}

TEST_P(FrozenRank, EndsABarrierOfTheOthers) {
  const auto& [frozen, backend] = GetParam();
  const std::string error =
      Freeze(frozen).error_of_other([](Group& world) { world.barrier("end of the epoch"); }, backend);
  if (frozen == 0) {
    EXPECT_THAT(error, HasSubstr("does not answer"));
  } else {
    EXPECT_THAT(error, HasSubstr("rank 1 did not reach 'end of the epoch'"));
  }
}

TEST_P(FrozenRank, EndsTheWaitOfAnotherThread) {
  const auto& [frozen, backend] = GetParam();
  const std::string error = Freeze(frozen).error_of_other(
      [](Group& world) { world.for_another_thread("saver")->exchange_texts("", "shards written"); }, backend);
  EXPECT_THAT(error, frozen == 0 ? HasSubstr("does not answer") : HasSubstr("rank 1 did not reach 'shards written'"));
}

INSTANTIATE_TEST_SUITE_P(Ranks, FrozenRank, testing::Combine(testing::Values(0, 1), testing::Values("gloo", "shm")));

}  // namespace
}  // namespace tessera::comm::frozen_rank_test
