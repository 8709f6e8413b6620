// What only shared memory has: tensors read in place beside tensors that are copied, memory that peers map, and what
// becomes of all that when a rank ends or the machine refuses.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <random>
#include <torch/csrc/distributed/c10d/FileStore.hpp>

#include "tessera/base/unique_fd.h"
#include "tessera/comm/group.h"
#include "tessera/comm/shm/byte_ranges.h"
#include "tessera/comm/shm/heap.h"
#include "tessera/comm/shm/mailbox.h"
#include "tessera/comm/shm/shm_exchange.h"
#include "tests/support/spawn_ranks.h"
#include "tests/support/temporary_folder.h"

namespace tessera::comm::shm_test {
namespace {

using test::outcomes_of_ranks;
using test::spawn_ranks;
using testing::HasSubstr;

constexpr int64_t kLarge = 3 << 20;  // fp32 elements of a shard: 12 MiB, many staged pieces

// Small integers: their sums are exact in any order.
at::Tensor values(int rank, int64_t numel) {
  return at::arange(numel, at::kInt).remainder_(1000).add_(rank * 1000).to(at::kFloat);
}

at::Tensor in_heap(const Group& world, const at::Tensor& tensor) {
  return world.empty(tensor.numel(), tensor.options()).copy_(tensor);
}

// Rank 0 lends in place, rank 1 copies through staging, and so on in turn.
TEST(Shm, InPlaceAndStagedTensorsMayMeet) {
  spawn_ranks(3,
              [](std::shared_ptr<Group> world) {
                const int rank = world->rank(), size = world->size();
                const auto mine = [&](const at::Tensor& tensor) {
                  return rank == 1 ? tensor : in_heap(*world, tensor);
                };
                const at::Tensor full = mine(values(rank, size * kLarge));
                at::Tensor shard = mine(at::empty({kLarge}));
                world->start_reduce_scatter(shard, full, 1, "sum").finish();
                const at::Tensor sum = values(0, size * kLarge) + values(1, size * kLarge) + values(2, size * kLarge);
                EXPECT_TRUE(at::equal(shard, sum.narrow(0, rank * kLarge, kLarge)));

                at::Tensor all = mine(at::empty({size * kLarge}));
                world->start_all_gather(all, shard, "gather").finish();
                EXPECT_TRUE(at::equal(all, sum));

                at::Tensor sent = mine(values(rank, kLarge));
                world->start_broadcast(sent, /*root=*/1, "broadcast").finish();
                EXPECT_TRUE(at::equal(sent, values(1, kLarge)));

                std::vector<at::Tensor> outgoing, incoming;
                for (int peer = 0; peer < size; ++peer) {
                  outgoing.push_back(mine(values(rank + 10 * peer, kLarge + peer)));
                  incoming.push_back(at::empty({kLarge + rank}));
                }
                world->start_all_to_all(incoming, outgoing, "exchange").finish();
                for (int peer = 0; peer < size; ++peer)
                  EXPECT_TRUE(at::equal(incoming[peer], values(peer + 10 * rank, kLarge + rank)));
              },
              {.backend = "shm"});
}

TEST(Shm, AnAllReduceMayBeInPlaceInAnyDtype) {
  spawn_ranks(2,
              [](std::shared_ptr<Group> world) {
                for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
                  at::Tensor buffer = in_heap(*world, at::full({kLarge}, 1.5 + world->rank(), dtype));
                  world->start_all_reduce(buffer, 0.5, "mean").finish();
                  EXPECT_TRUE(at::equal(buffer, at::full({kLarge}, 2.0, dtype)));
                }
              },
              {.backend = "shm"});
}

// Each rank waits first for what the other waits for last, and none of it fits into the staging at once.
TEST(Shm, LargeCollectivesOfTwoChannelsMayBeWaitedForInAnyOrder) {
  spawn_ranks(2,
              [](std::shared_ptr<Group> world) {
                const auto other = world->with_channel("other");
                at::Tensor a = at::empty({2 * kLarge}), b = at::empty({2 * kLarge});
                auto first = world->start_all_gather(a, values(world->rank(), kLarge), "a");
                auto second = other->start_all_gather(b, values(world->rank() + 2, kLarge), "b");
                (world->rank() == 0 ? first : second).finish();
                (world->rank() == 0 ? second : first).finish();
                EXPECT_TRUE(at::equal(a, at::cat({values(0, kLarge), values(1, kLarge)})));
                EXPECT_TRUE(at::equal(b, at::cat({values(2, kLarge), values(3, kLarge)})));
              },
              {.backend = "shm"});
}

TEST(Shm, WhatIsLentMayBeWrittenOnceItIsSettled) {
  spawn_ranks(2,
              [](std::shared_ptr<Group> world) {
                at::Tensor shard = in_heap(*world, values(world->rank(), kLarge));
                at::Tensor full = at::empty({2 * kLarge});
                auto gathering = world->start_all_gather(full, shard, "weights");
                if (world->rank() == 1) usleep(300'000);  // it reads in take_result(), when rank 0 has long had its own
                gathering.take_result();
                world->settle();
                shard.fill_(-1);
                EXPECT_TRUE(at::equal(full, at::cat({values(0, kLarge), values(1, kLarge)})));
              },
              {.backend = "shm"});
}

TEST(Shm, SixtyFourRanksOnAnyNumberOfCores) {
  spawn_ranks(64,
              [](std::shared_ptr<Group> world) {
                at::Tensor buffer = values(world->rank(), 64 * 1000);
                world->start_all_reduce(buffer, 1, "sum").finish();
                const at::Tensor expected = values(0, 64 * 1000) * 64 + 1000.0 * 63 * 64 / 2;
                EXPECT_TRUE(at::equal(buffer, expected));
              },
              {.backend = "shm"});
}

TEST(Shm, MoreMessagesThanAMailboxHasPosts) {
  constexpr int kMessages = shm::Mailbox::kPosts + 200;
  spawn_ranks(2,
              [](std::shared_ptr<Group> world) {
                std::vector<Collective> messages;
                std::vector<at::Tensor> buffers;
                for (int message = 0; message < kMessages; ++message) {
                  buffers.push_back(at::full({3}, world->rank() == 0 ? message : -1, at::kInt));
                  messages.push_back(world->rank() == 0 ? world->start_send(buffers.back(), 1, "m")
                                                        : world->start_receive(buffers.back(), 0, "m"));
                }
                for (Collective& message : messages) message.finish();
                for (int message = 0; message < kMessages; ++message)
                  EXPECT_EQ(buffers[message][0].item<int>(), message);
              },
              {.backend = "shm"});
}

TEST(Shm, ARankThatEndsWhileOthersReadItsTensorsIsNamed) {
  const auto outcomes = outcomes_of_ranks(
      3,
      [](std::shared_ptr<Group> world) {
        at::Tensor buffer = in_heap(*world, values(world->rank(), kLarge));
        if (world->rank() == 2) kill(getpid(), SIGKILL);
        world->start_broadcast(buffer, /*root=*/0, "weights").finish();  // rank 0 waits until both have read
        world->start_all_reduce(buffer, 1, "sum").finish();
      },
      {.backend = "shm"});
  for (const int rank : {0, 1}) {  // whoever notices first ends too, and the other may then miss that one
    EXPECT_EQ(outcomes[rank].exit_code, 1);
    EXPECT_THAT(outcomes[rank].output, HasSubstr(" went away during the"));
  }
  EXPECT_THAT(outcomes[0].output + outcomes[1].output, HasSubstr("rank 2 went away during the"));
}

// What it has posted before it ends is still there to be read.
TEST(Shm, ARankMayLeaveBeforeItsLastMessageIsRead) {
  const auto outcomes = outcomes_of_ranks(2,
                                          [](std::shared_ptr<Group> world) {
                                            at::Tensor buffer = at::full({100}, 7.0f);
                                            if (world->rank() == 0) {
                                              sleep(1);
                                              at::Tensor received = at::empty({100});
                                              world->start_receive(received, 1, "last words").finish();
                                              EXPECT_TRUE(at::equal(received, buffer));
                                              _exit(testing::Test::HasFailure() ? 1 : 0);
                                            }
                                            world->start_send(buffer, 0, "last words").finish();
                                            kill(getpid(), SIGKILL);
                                          },
                                          {.backend = "shm"});
  EXPECT_EQ(outcomes[0].exit_code, 0) << outcomes[0].output;
}

TEST(Shm, PosixObjectsLeaveNoNameBehind) {
  const auto names = [] {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
      if (entry.path().filename().string().starts_with("tessera")) found.push_back(entry.path().string());
    }
    return found;
  };
  const auto outcomes =
      outcomes_of_ranks(2,
                        [&](std::shared_ptr<Group> world) {
                          at::Tensor buffer = in_heap(*world, at::ones({kLarge}));
                          world->start_all_reduce(buffer, 1, "sum").finish();
                          EXPECT_EQ(buffer[kLarge - 1].item<float>(), 2.0f);
                          EXPECT_THAT(names(), testing::IsEmpty());
                          kill(getpid(), testing::Test::HasFailure() ? SIGABRT : SIGKILL);
                        },
                        {.backend = "shm", .before_joining = [](int) { setenv("TESSERA_SHM", "posix", 1); }});
  for (const auto& outcome : outcomes) EXPECT_EQ(outcome.exit_code, 128 + SIGKILL) << outcome.output;
  EXPECT_THAT(names(), testing::IsEmpty());
}

void refuse_files_on_rank_1(int rank) {
  if (rank != 1) return;
  const rlimit limit{1 << 20, 1 << 20};
  setrlimit(RLIMIT_FSIZE, &limit);
}

TEST(Shm, WhatOneRankCannotHaveAllDoWithout) {
  const auto outcomes = outcomes_of_ranks(2,
                                          [](std::shared_ptr<Group> world) {
                                            at::Tensor buffer = at::full({kLarge}, 1.0f + world->rank());
                                            world->start_all_reduce(buffer, 1, "sum").finish();
                                            EXPECT_TRUE(at::equal(buffer, at::full({kLarge}, 3.0f)));
                                          },
                                          {.backend = "auto", .before_joining = refuse_files_on_rank_1});
  for (const auto& outcome : outcomes) EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_THAT(outcomes[0].output, HasSubstr("rank 1: shared memory between ranks: making a memory file of"));
  EXPECT_THAT(outcomes[0].output, HasSubstr("falling back to gloo"));
}

TEST(Shm, WhatIsAskedForByNameIsAnErrorWhereItCannotBe) {
  const auto outcomes =
      outcomes_of_ranks(2, [](std::shared_ptr<Group>) {}, {.backend = "shm", .before_joining = refuse_files_on_rank_1});
  for (const auto& outcome : outcomes) {
    EXPECT_EQ(outcome.exit_code, 1);
    EXPECT_THAT(outcome.output, HasSubstr("rank 1: shared memory between ranks"));
  }
}

// A container's /dev/shm, each rank's its own; false where this system allows no such thing.
bool mount_small_dev_shm(const char* size) {
  if (unshare(CLONE_NEWNS) != 0) return false;
  mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
  setenv("TESSERA_SHM", "posix", 1);
  return mount("tmpfs", "/dev/shm", "tmpfs", 0, size) == 0;
}

bool can_mount() {
  const pid_t child = fork();
  if (child == 0) _exit(mount_small_dev_shm("size=1m") ? 0 : 1);
  int status = 0;
  waitpid(child, &status, 0);
  return WEXITSTATUS(status) == 0;
}

TEST(Shm, WhatASmallDevShmCannotHoldIsCopied) {
  if (!can_mount()) GTEST_SKIP() << "this system lets nobody mount";
  const auto outcomes = outcomes_of_ranks(
      2,
      [](std::shared_ptr<Group> world) {
        at::Tensor buffer = in_heap(*world, at::ones({kLarge}));
        world->start_all_reduce(buffer, 1, "sum").finish();
        EXPECT_TRUE(at::equal(buffer, at::full({kLarge}, 2.0f)));
      },
      {.backend = "auto", .before_joining = [](int) { ASSERT_TRUE(mount_small_dev_shm("size=4m")); }});
  for (const auto& outcome : outcomes) {
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr("shared memory has no room for another 12.6 MB"));
  }
}

TEST(Shm, WithoutRoomForAnythingRanksUseGlooAndSaySo) {
  if (!can_mount()) GTEST_SKIP() << "this system lets nobody mount";
  const auto outcomes = outcomes_of_ranks(2,
                                          [](std::shared_ptr<Group> world) {
                                            at::Tensor buffer = at::ones({kLarge});
                                            world->start_all_reduce(buffer, 1, "sum").finish();
                                            EXPECT_TRUE(at::equal(buffer, at::full({kLarge}, 2.0f)));
                                          },
                                          {.backend = "auto", .before_joining = [](int rank) {
                                             ASSERT_TRUE(mount_small_dev_shm(rank == 1 ? "size=64k" : "size=64m"));
                                           }});
  for (const auto& outcome : outcomes) EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_THAT(outcomes[0].output, HasSubstr("rank 1: there is no room in shared memory; falling back to gloo"));
}

// Another network namespace stands for another host.
TEST(Shm, RanksOfTwoHostsAreNoRefusalToWarnOf) {
  const test::TemporaryFolder folder;
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const auto joins = [&](int rank) {
    const auto store = c10::make_intrusive<c10d::FileStore>((folder.path() / "store").string(), 2);
    shm::Refusal refusal;
    const auto exchange = shm::join(*store, rank, 2, std::chrono::seconds(20), refusal);
    return exchange == nullptr && refusal.expected && refusal.reason == "ranks 0 and 1 are not on the same host";
  };
  const pid_t child = fork();
  if (child == 0) {
    if (unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) _exit(2);
    _exit(write(ends[1], "x", 1) == 1 && joins(1) ? 0 : 1);
  }
  const UniqueFd reader(ends[0]);
  close(ends[1]);
  char is_elsewhere = 0;
  const bool has_namespaces = read(reader.get(), &is_elsewhere, 1) == 1;
  const bool refused = has_namespaces && joins(0);
  int status = 0;
  waitpid(child, &status, 0);
  if (!has_namespaces) GTEST_SKIP() << "this system gives no network namespaces";
  EXPECT_TRUE(refused);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

std::shared_ptr<shm::Heap> heap_of(size_t bytes) { return shm::Heap::make(shm::Segment::create(bytes), 4096); }

TEST(ShmHeap, FreedBlocksAreUsedAgainAndMerge) {
  const auto heap = heap_of(4096 * 11);
  auto a = heap->try_allocate(4096 * 3), b = heap->try_allocate(4096 * 3), c = heap->try_allocate(4096 * 4);
  ASSERT_TRUE(a && b && c);
  EXPECT_FALSE(heap->try_allocate(1));
  EXPECT_EQ(heap->offset_of(b->get(), 100), 4096u * 4);
  EXPECT_EQ(heap->offset_of(&a, sizeof(a)), std::nullopt);
  void* const begin = a->get();
  a.reset();
  c.reset();
  b.reset();
  const auto whole = heap->try_allocate(4096 * 10);
  ASSERT_TRUE(whole);
  EXPECT_EQ(whole->get(), begin);
}

// What another process frees is not the owner's.
TEST(ShmHeap, AForkGivesNothingBack) {
  const auto heap = heap_of(shm::Heap::kKeptBytes * 2);
  auto block = heap->try_allocate(shm::Heap::kKeptBytes + 4096);  // more than is kept: freeing it discards its pages
  static_cast<char*>(block->get())[0] = 'x';
  const pid_t child = fork();
  if (child == 0) {
    block.reset();
    _exit(0);
  }
  waitpid(child, nullptr, 0);
  EXPECT_EQ(static_cast<char*>(block->get())[0], 'x');
}

TEST(ShmHeap, PagesBeyondWhatIsKeptGoBack) {
  const auto heap = heap_of(shm::Heap::kKeptBytes * 2);
  auto block = heap->try_allocate(shm::Heap::kKeptBytes + 4096);
  auto* const data = static_cast<char*>(block->get());
  data[0] = 'x';
  block.reset();
  EXPECT_EQ(data[0], 0);  // the segment is still mapped; a new page is zeros
}

// Against one flag a byte.
TEST(ByteRanges, AreASetOfBytesInAsFewRangesAsPossible) {
  constexpr size_t kBytes = 40;
  shm::ByteRanges ranges;
  std::vector<bool> expected(kBytes, false);
  std::mt19937 random(7);
  for (int turn = 0; turn < 2000; ++turn) {
    size_t begin = random() % (kBytes + 1), end = random() % (kBytes + 1);
    if (begin > end) std::swap(begin, end);
    const bool adds = random() % 2 == 0;
    adds ? ranges.add(begin, end) : ranges.remove(begin, end);
    std::fill(expected.begin() + begin, expected.begin() + end, adds);

    std::vector<bool> found(kBytes, false);
    size_t last_end = 0;
    for (const auto& [from, to] : ranges.ranges()) {
      ASSERT_TRUE(from < to && (from > last_end || last_end == 0)) << "turn " << turn;
      std::fill(found.begin() + from, found.begin() + to, true);
      last_end = to;
    }
    ASSERT_EQ(found, expected) << "turn " << turn;
    for (const auto& [from, to] : ranges.missing(0, kBytes)) std::fill(found.begin() + from, found.begin() + to, true);
    ASSERT_EQ(found, std::vector<bool>(kBytes, true)) << "turn " << turn;
    for (const auto& [from, to] : ranges.missing(begin, end)) ASSERT_TRUE(!adds && from == begin && to == end);
  }
}

}  // namespace
}  // namespace tessera::comm::shm_test
