// Ranks of several hosts, which TESSERA_HOST tells apart here: shared memory within each, gloo between them. Expected
// values: sums of small integers, which are exact in any order.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <thread>

#include "tessera/comm/group.h"
#include "tests/support/spawn_ranks.h"

namespace tessera::comm::two_level_test {
namespace {

using test::outcomes_of_ranks;
using test::spawn_ranks;
using testing::HasSubstr;

struct Hosts {
  int ranks;
  int ranks_a_host;
};

class TwoLevels : public testing::TestWithParam<Hosts> {
 protected:
  void spawn(const test::RankBody& body) const {
    spawn_ranks(GetParam().ranks, body, {.ranks_a_host = GetParam().ranks_a_host});
  }
};

INSTANTIATE_TEST_SUITE_P(Hosts, TwoLevels, testing::Values(Hosts{4, 2}, Hosts{6, 2}, Hosts{6, 3}),
                         [](const auto& info) {
                           return std::to_string(info.param.ranks) + "RanksOnHostsOf" +
                                  std::to_string(info.param.ranks_a_host);
                         });

// Of rank `rank`: (i + 3 rank) mod 7.
at::Tensor values(int rank, int64_t numel, at::ScalarType dtype = at::kFloat) {
  return at::arange(numel, at::kInt).add_(3 * rank).remainder_(7).to(dtype);
}

at::Tensor sum_of_values(int size, int64_t numel, at::ScalarType dtype) {
  at::Tensor sum = at::zeros({numel}, at::kInt);
  for (int rank = 0; rank < size; ++rank) sum.add_(values(rank, numel, at::kInt));
  return sum.to(dtype);
}

TEST_P(TwoLevels, CollectivesAgreeWithTheirFormulas) {
  spawn([](std::shared_ptr<Group> world) {
    const int size = world->size();
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const int64_t slice_numel : {int64_t{1}, int64_t{33}, int64_t{70001}}) {
        for (const bool in_heap : {false, true}) {
          const auto prepared = [&](const at::Tensor& tensor) {
            return in_heap ? world->empty(tensor.numel(), tensor.options()).copy_(tensor) : tensor;
          };
          const int64_t numel = slice_numel * size;
          const at::Tensor sum = sum_of_values(size, numel, dtype);
          at::Tensor shard = at::empty({slice_numel}, dtype);
          world->start_reduce_scatter(shard, prepared(values(world->rank(), numel, dtype)), 1, "a").finish();
          EXPECT_TRUE(at::equal(shard, sum.narrow(0, world->rank() * slice_numel, slice_numel)));

          at::Tensor reduced = prepared(values(world->rank(), numel, dtype));
          world->start_all_reduce(reduced, 2, "b").finish();
          EXPECT_TRUE(at::equal(reduced, sum * 2));

          at::Tensor full = prepared(at::zeros({numel}, dtype));
          world->start_all_gather(full, prepared(shard), "c").finish();
          EXPECT_TRUE(at::equal(full, sum));
        }
      }
    }
    for (int root = 0; root < size; ++root) {
      at::Tensor sent = values(world->rank(), 5000);
      world->start_broadcast(sent, root, "d").finish();
      EXPECT_TRUE(at::equal(sent, values(root, 5000)));
    }
  });
}

TEST_P(TwoLevels, EveryRankReachesEveryOther) {
  spawn([](std::shared_ptr<Group> world) {
    const int size = world->size(), rank = world->rank();
    std::vector<at::Tensor> incoming, outgoing;
    for (int peer = 0; peer < size; ++peer) {
      outgoing.push_back(at::full({100 + peer}, 10.0f * rank + peer));
      incoming.push_back(at::empty({100 + rank}));
    }
    world->start_all_to_all(incoming, outgoing, "a").finish();
    for (int peer = 0; peer < size; ++peer) {
      EXPECT_TRUE(at::equal(incoming[peer], at::full({100 + rank}, 10.0f * peer + rank)));
    }
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) continue;
      at::Tensor from = at::empty({7000});
      auto sending = world->start_send(values(rank, 7000), peer, "b");
      world->start_receive(from, peer, "b").finish();
      sending.finish();
      EXPECT_TRUE(at::equal(from, values(peer, 7000)));
    }
  });
}

// Each rank waits for them in an order of its own, and they have several steps.
TEST_P(TwoLevels, CollectivesOfManyChannelsMayBeWaitedForInAnyOrder) {
  spawn([](std::shared_ptr<Group> world) {
    constexpr int kChannels = 6;
    constexpr int64_t kNumel = 30000;
    const int size = world->size(), rank = world->rank();
    std::vector<std::shared_ptr<Group>> channels;
    for (int i = 0; i < kChannels; ++i) channels.push_back(world->with_channel("channel"));
    std::vector<at::Tensor> shards(kChannels), fulls(kChannels);
    std::vector<Collective> reductions(kChannels), gathers(kChannels);
    for (int turn = 0; turn < 20; ++turn) {
      for (int step = 0; step < kChannels; ++step) {
        const int i = (step + rank) % kChannels;
        shards[i] = at::empty({kNumel});
        fulls[i] = at::empty({size * kNumel});
        reductions[i] = channels[i]->start_reduce_scatter(shards[i], values(rank + i, size * kNumel), 1, "x");
        gathers[i] = channels[i]->start_all_gather(fulls[i], values(rank + i, kNumel), "y");
      }
      for (int step = 0; step < kChannels; ++step) {
        const int i = (rank % 2 == 0 ? step : kChannels - 1 - step);
        (rank % 2 == 0 ? gathers : reductions)[i].finish();
      }
      for (int i = 0; i < kChannels; ++i) {
        (rank % 2 == 0 ? reductions : gathers)[i].finish();
        at::Tensor sum = at::zeros({size * kNumel});
        for (int peer = 0; peer < size; ++peer) sum.add_(values(peer + i, size * kNumel));
        ASSERT_TRUE(at::equal(shards[i], sum.narrow(0, rank * kNumel, kNumel)));
        for (int peer = 0; peer < size; ++peer) {
          ASSERT_TRUE(at::equal(fulls[i].narrow(0, peer * kNumel, kNumel), values(peer + i, kNumel)));
        }
      }
    }
  });
}

// bf16 has eight bits: 257 is none of its numbers, but 258 is. A host's sum rounded to bf16 would lose the 1.
TEST(TwoLevelsInBf16, SumsOfAHostAreKeptInFp32) {
  spawn_ranks(
      4,
      [](std::shared_ptr<Group> world) {
        const double own[] = {256, 1, 1, 0};
        at::Tensor shard = at::empty({5000}, at::kBFloat16);
        world->start_reduce_scatter(shard, at::full({20000}, own[world->rank()], at::kBFloat16), 1, "x").finish();
        EXPECT_TRUE(at::equal(shard, at::full({5000}, 258, at::kBFloat16)));
      },
      {.ranks_a_host = 2});
}

TEST(TwoLevelsOfTrouble, ARankThatDiesOnAnotherHostEndsTheOthers) {
  const auto outcomes =
      outcomes_of_ranks(4,
                        [](std::shared_ptr<Group> world) {
                          at::Tensor buffer = at::ones({40000});
                          world->start_all_reduce(buffer, 1, "before").finish();
                          if (world->rank() == 3) raise(SIGKILL);
                          world->start_all_reduce(buffer, 1, "after").finish();
                        },
                        {.deadline = std::chrono::seconds(40), .timeout = std::chrono::seconds(30), .ranks_a_host = 2});
  EXPECT_EQ(outcomes[3].exit_code, 128 + SIGKILL);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(outcomes[rank].exit_code, 1) << outcomes[rank].output;
    EXPECT_THAT(outcomes[rank].output, HasSubstr("went away during"));
  }
  EXPECT_THAT(outcomes[2].output, HasSubstr("rank 3 went away"));
}

TEST(TwoLevelsOfTrouble, ARankThatDoesNotComeIsNamed) {
  const auto outcomes =
      outcomes_of_ranks(4,
                        [](std::shared_ptr<Group> world) {
                          at::Tensor buffer = at::ones({40000});
                          if (world->rank() == 2) return std::this_thread::sleep_for(std::chrono::seconds(8));
                          world->start_all_reduce(buffer, 1, "weights").finish();
                        },
                        {.deadline = std::chrono::seconds(40), .timeout = std::chrono::seconds(3), .ranks_a_host = 2});
  EXPECT_THAT(outcomes[3].output, HasSubstr("rank 2 did not join the reduce-scatter of 'weights'"));
}

// One host of three ranks and one of one.
TEST(TwoLevelsOfTrouble, HostsOfDifferentSizesUseGlooAlone) {
  spawn_ranks(4,
              [](std::shared_ptr<Group> world) {
                at::Tensor buffer = at::ones({40000});
                world->start_all_reduce(buffer, 1, "x").finish();
                EXPECT_TRUE(at::equal(buffer, at::full({40000}, 4.0f)));
              },
              {.before_joining = [](int rank) { setenv("TESSERA_HOST", rank < 3 ? "a" : "b", 1); }});
}

}  // namespace
}  // namespace tessera::comm::two_level_test
