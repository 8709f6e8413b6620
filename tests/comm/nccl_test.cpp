// NCCL's transport over the stand-in for its library (tests/support/nccl_stand_in.cpp), and over a group of torch's
// that is made of it (far_torch_group.h), on the far device. The ranks say that each is on a host of its own, so that
// their one device counts as several; their host transport is gloo.
#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <torch/csrc/distributed/c10d/FileStore.hpp>

#include "tessera/base/error.h"
#include "tessera/comm/connection.h"
#include "tessera/comm/group.h"
#include "tessera/comm/nccl/device_links.h"
#include "tessera/comm/nccl/library.h"
#include "tests/comm/far_torch_group.h"
#include "tests/comm/group_checks.h"
#include "tests/support/built_places.h"
#include "tests/support/far_device.h"
#include "tests/support/spawn_ranks.h"
#include "tests/support/temporary_folder.h"

namespace tessera::comm::nccl_test {
namespace {

using std::chrono::seconds;
using test::far_device;
using test::outcomes_of_ranks;
using test::World;
using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using testing::IsEmpty;

using Variables = std::vector<std::pair<std::string, std::string>>;

enum class Via { kLibrary, kTorch };

std::string name_of(Via via) { return via == Via::kTorch ? "TorchsGroup" : "TheLibrary"; }

auto joining_with_torch(seconds timeout) {
  return [timeout](const comm::World& world) {
    return connect(world, open_store(world, timeout), "tessera", {.timeout = timeout, .backend = "gloo"},
                   test::far_torch_group(world.rank, world.size, test::nccl_stand_in()));
  };
}

// `of_rank_1`: set there alone.
test::SpawnOptions with_nccl(Via via, const Variables& of_all = {}, const Variables& of_rank_1 = {}) {
  const auto set = [=](int rank) {
    far_device();
    test::set_far_mode({.late = true, .seed = 5, .records = true});
    if (via == Via::kLibrary) setenv("TESSERA_NCCL_LIBRARY", test::nccl_stand_in().c_str(), 1);
    for (const auto& [name, value] : of_all) setenv(name.c_str(), value.c_str(), 1);
    for (const auto& [name, value] : of_rank_1) rank == 1 ? setenv(name.c_str(), value.c_str(), 1) : 0;
  };
  test::SpawnOptions options{.timeout = seconds(20), .ranks_a_host = 1, .backend = "gloo", .before_joining = set};
  if (via == Via::kTorch) options.join = joining_with_torch(seconds(20));
  return options;
}

class Nccl : public testing::TestWithParam<Via> {};
INSTANTIATE_TEST_SUITE_P(Through, Nccl, testing::Values(Via::kLibrary, Via::kTorch),
                         [](const auto& info) { return name_of(info.param); });

// Streams are late, and every two operations on the same bytes are ordered.
void spawn_late_ranks(int count, const test::RankBody& body, const test::SpawnOptions& options) {
  const auto watched = [&](const World& world) {
    body(world);
    EXPECT_THAT(test::far_facts().races, IsEmpty());
  };
  test::spawn_ranks(count, watched, options);
}

test::SpawnOptions within(seconds timeout, test::SpawnOptions options) {
  options.timeout = timeout;
  if (options.join) options.join = joining_with_torch(timeout);
  return options;
}

at::TensorOptions there(at::ScalarType dtype = at::kFloat) { return at::TensorOptions(far_device()).dtype(dtype); }

// Positive, so that a sum's relative error is that of its roundings; no sum of them is exact in 16 bits.
at::Tensor input_of(int rank, int64_t numel, at::ScalarType dtype) {
  return (at::arange(numel, at::kFloat).remainder_(997) * 0.37f + static_cast<float>(rank) * 1.01f).to(dtype);
}

// Of four ranks' sums: the scale, its products and the sums are each rounded to the dtype, at most six times half a
// unit.
double tolerance_of(at::ScalarType dtype) {
  if (dtype == at::kBFloat16) return 4.0 / 256;
  return dtype == at::kHalf ? 4.0 / 2048 : 1e-6;
}

void expect_close(const at::Tensor& found, const at::Tensor& of_host) {
  EXPECT_TRUE(at::allclose(found.cpu().to(at::kFloat), of_host.to(at::kFloat), tolerance_of(of_host.scalar_type()),
                           tolerance_of(of_host.scalar_type())));
}

// One collective on the host, and the same on the device.
template <class Run>
std::pair<at::Tensor, at::Tensor> on_both(const Run& run) {
  at::Tensor of_host = run(at::Device(at::kCPU));
  return {of_host, run(far_device()).cpu()};
}

void collectives_equal_the_hosts(const World& world, at::ScalarType dtype, int64_t shard_numel) {
  const int size = world->size(), rank = world->rank();
  const int64_t numel = size * shard_numel;
  const auto empty = [&](int64_t count, at::Device device) {
    return at::zeros({count}, at::TensorOptions(device).dtype(dtype));
  };
  const auto input = [&](int of, int64_t count, at::Device device) { return input_of(of, count, dtype).to(device); };

  const auto [host_shard, shard] = on_both([&](at::Device device) {
    at::Tensor result = empty(shard_numel, device);
    world->start_reduce_scatter(result, input(rank, numel, device), 0.3, "a").finish();
    return result;
  });
  expect_close(shard, host_shard);

  const auto [host_sum, sum] = on_both([&](at::Device device) {
    at::Tensor result = input(rank, numel, device);
    world->start_all_reduce(result, 0.3, "b").finish();
    return result;
  });
  expect_close(sum, host_sum);

  const auto [host_full, full] = on_both([&](at::Device device) {
    at::Tensor result = empty(numel, device);
    world->start_all_gather(result, input(rank, shard_numel, device), "c").finish();
    return result;
  });
  EXPECT_TRUE(at::equal(full, host_full));

  const auto [host_in_place, in_place] = on_both([&](at::Device device) {
    at::Tensor result = input(rank, numel, device);
    world->start_all_gather(result, result.narrow(0, rank * shard_numel, shard_numel), "in place").finish();
    return result;
  });
  EXPECT_TRUE(at::equal(in_place, host_in_place));

  const auto [host_sent, sent] = on_both([&](at::Device device) {
    at::Tensor result = input(rank, shard_numel, device);
    world->start_broadcast(result, size - 1, "d").finish();
    return result;
  });
  EXPECT_TRUE(at::equal(sent, host_sent));

  const auto [host_dealt, dealt] = on_both([&](at::Device device) {
    at::Tensor result = empty(numel, device);
    std::vector<at::Tensor> outgoing;
    for (int peer = 0; peer < size; ++peer) outgoing.push_back(input(rank * size + peer, shard_numel, device));
    world->start_all_to_all(result.chunk(size), outgoing, "e").finish();
    return result;
  });
  EXPECT_TRUE(at::equal(dealt, host_dealt));

  if (rank > 1) return;
  const auto [host_message, message] = on_both([&](at::Device device) {
    at::Tensor result = rank == 0 ? input(7, shard_numel, device) : empty(shard_numel, device);
    rank == 0 ? world->start_send(result, 1, "f").finish() : world->start_receive(result, 0, "f").finish();
    return result;
  });
  EXPECT_TRUE(at::equal(message, host_message));
}

class NcclOf : public testing::TestWithParam<std::tuple<int, Via>> {};
INSTANTIATE_TEST_SUITE_P(Ranks, NcclOf,
                         testing::Combine(testing::Values(2, 3, 4), testing::Values(Via::kLibrary, Via::kTorch)),
                         [](const auto& info) {
                           return std::to_string(std::get<0>(info.param)) + "Through" +
                                  name_of(std::get<1>(info.param));
                         });

TEST_P(NcclOf, EveryCollectiveGivesWhatTheHostsGivesWhateverComesLate) {
  const auto body = [](const World& world) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const int64_t shard_numel : {1, 33, 70001}) collectives_equal_the_hosts(world, dtype, shard_numel);
    }
  };
  spawn_late_ranks(std::get<0>(GetParam()), body, with_nccl(std::get<1>(GetParam()), {{"STAND_IN_SEED", "7"}}));
}

TEST_P(NcclOf, SumsInRankOrderHaveTheBitsOfTheFormula) {
  const auto body = [](const World& world) {
    test::collectives_of_device_agree_with_their_formulas(world, far_device());
  };
  spawn_late_ranks(std::get<0>(GetParam()), body,
                   with_nccl(std::get<1>(GetParam()), {{"STAND_IN_SEED", "8"}, {"TESSERA_NCCL_SUMS", "rank_order"}}));
}

at::Tensor sum_in_rank_order(int size, int64_t numel, at::ScalarType dtype) {
  at::Tensor sum = at::zeros({numel}, at::kFloat);
  for (int rank = 0; rank < size; ++rank) sum += input_of(rank, numel, dtype).to(at::kFloat);
  return sum;
}

// The order is NCCL's, here the last rank's first: that NCCL is used at all, too.
TEST_P(Nccl, SumsAreNotInRankOrderUnlessThatIsAskedFor) {
  const auto body = [](const World& world) {
    constexpr int64_t kNumel = 3000;
    at::Tensor sum = input_of(world->rank(), kNumel, at::kFloat).to(far_device());
    world->start_all_reduce(sum, 1, "sum").finish();
    expect_close(sum, sum_in_rank_order(3, kNumel, at::kFloat));
    EXPECT_FALSE(at::equal(sum.cpu(), sum_in_rank_order(3, kNumel, at::kFloat)));
  };
  spawn_late_ranks(3, body, with_nccl(GetParam()));
}

// A bucket of 64 elements: many pieces.
TEST_P(Nccl, ShardsInFp32OfA16BitGradientAreAddedInRankOrder) {
  const auto body = [](const World& world) {
    constexpr int64_t kShard = 1000;
    at::Tensor shard = at::zeros({kShard}, there());
    const at::Tensor full = input_of(world->rank(), 3 * kShard, at::kBFloat16).to(far_device());
    world->start_reduce_scatter(shard, full, 1, "gradients", /*bucket_numel=*/64).finish();
    const at::Tensor sum = sum_in_rank_order(3, 3 * kShard, at::kBFloat16);
    EXPECT_TRUE(at::equal(shard.cpu(), sum.narrow(0, world->rank() * kShard, kShard)));
  };
  spawn_late_ranks(3, body, with_nccl(GetParam(), {{"STAND_IN_SEED", "9"}}));
}

TEST_P(Nccl, BytesAreCountedAsTheHostTransportCountsThem) {
  const auto body = [](const World& world) {
    const auto sent_by = [&](at::Device device) {
      const int64_t before = world->bytes_sent();
      const auto options = at::TensorOptions(device);
      const auto channel = world->with_channel("gathers");
      channel->start_all_gather(at::empty({300}, options), at::ones({100}, options), "gather").finish();
      world->start_reduce_scatter(at::empty({100}, options), at::ones({300}, options), 1, "reduce").finish();
      world->start_broadcast(at::ones({50}, options), 1, "broadcast").finish();
      return world->bytes_sent() - before;
    };
    EXPECT_EQ(sent_by(far_device()), sent_by(at::kCPU));
  };
  spawn_late_ranks(3, body, with_nccl(GetParam()));
}

// Every rank begins with another group; each group has a channel more, whose collectives come in another order still.
TEST_P(Nccl, GroupsAndChannelsMayBeginInDifferentOrders) {
  const auto body = [](const World& world) {
    const int rank = world->rank();
    const auto pair = world->subgroup({rank / 2 * 2, rank / 2 * 2 + 1}, "pair");
    const auto parity = world->subgroup({rank % 2, rank % 2 + 2}, "parity");
    std::vector<World> groups{world, world->with_channel("more"), pair, pair->with_channel("more"), parity};
    std::vector<Collective> collectives(groups.size());
    std::vector<at::Tensor> results(groups.size());
    for (size_t step = 0; step < groups.size(); ++step) {
      const size_t i = (step + static_cast<size_t>(rank) * 2) % groups.size();
      results[i] = at::zeros({groups[i]->size() * 5}, there());
      collectives[i] = groups[i]->start_all_gather(results[i], at::full({5}, 10.0f * i + rank, there()), "shards");
    }
    for (size_t i = 0; i < groups.size(); ++i) {
      collectives[i].finish();
      std::vector<at::Tensor> expected;
      for (const int member : groups[i]->members()) expected.push_back(at::full({5}, 10.0f * i + member));
      EXPECT_TRUE(at::equal(results[i].cpu(), at::cat(expected))) << i;
    }
  };
  spawn_late_ranks(4, body, with_nccl(GetParam(), {{"STAND_IN_SEED", "10"}}));
}

// Both ranks send before they receive, more than is on its way at once.
TEST_P(Nccl, MessagesOfTwoRanksGoBothWaysAtOnceInOrder) {
  const test::TemporaryFolder folder;
  const auto body = [path = folder.path() / "store", via = GetParam()](const World& world) {
    constexpr int64_t kNumel = 300'000;
    const int rank = world->rank(), other = 1 - rank;
    nccl::DeviceLinks links(
        c10::make_intrusive<c10d::FileStore>(path.string(), 2),
        {.rank = rank,
         .timeout = seconds(20),
         .group_of_torch = via == Via::kTorch ? test::far_torch_group(rank, 2, test::nccl_stand_in()) : nullptr});
    const auto sent = std::make_shared<std::atomic<int64_t>>(0);
    const auto exchange = links.exchange_of({0, 1}, far_device(), sent);
    ASSERT_NE(exchange, nullptr);
    const at::Tensor a = at::full({kNumel}, 10.0f + rank, there()), b = at::full({kNumel}, 20.0f + rank, there());
    const at::Tensor from_a = at::zeros({kNumel}, there()), from_b = at::zeros({kNumel}, there());
    std::vector<Exchange::PendingPtr> pending;
    pending.push_back(exchange->send(a, other, 5));
    pending.push_back(exchange->send(b, other, 6));
    pending.push_back(exchange->receive(from_a, other, 5));
    pending.push_back(exchange->receive(from_b, other, 6));
    for (const auto& each : pending) each->wait(std::chrono::steady_clock::now() + seconds(20));
    EXPECT_TRUE(at::equal(from_a.cpu(), at::full({kNumel}, 10.0f + other)));
    EXPECT_TRUE(at::equal(from_b.cpu(), at::full({kNumel}, 20.0f + other)));
    EXPECT_EQ(*sent, 2 * kNumel * 4);
    world->barrier("both are done");
  };
  spawn_late_ranks(2, body, with_nccl(GetParam(), {{"STAND_IN_SEED", "12"}}));
}

void warm_up(const World& world) {
  world->start_all_gather(at::empty({world->size()}, there()), at::ones({1}, there()), "first").finish();
}

c10::Stream new_stream() {
  return c10::impl::VirtualGuardImpl(far_device().type()).getNewStream(far_device(), /*priority=*/0);
}

// Rank 1 begins only when rank 0 has started all and waited for nothing. What rank 0 drops meanwhile is not given to
// others, as a gather writes there later; what follows on its stream, a collective too, finds the result of a gather.
TEST_P(Nccl, AStreamWaitsWhileTheHostGoesOnAndTensorsAreHeld) {
  const auto body = [](const World& world) {
    warm_up(world);
    const World another = world->with_channel("another");
    const at::Tensor shard = at::full({1000}, world->rank() + 1.0f, there());
    const at::Tensor expected = at::cat({at::full({1000}, 1.0f), at::full({1000}, 2.0f)});
    at::Tensor full = at::zeros({2000}, there()), dropped = at::zeros({2000}, there());
    const at::Tensor twice = at::zeros({4000}, there());
    if (world->rank() == 1) world->barrier("rank 0 has gone on");
    const c10::Stream other = new_stream();
    world->start_all_gather(dropped, shard, "dropped").wait_on(other);
    dropped.reset();
    const at::Tensor later = at::full({2000}, 7.0f, there());
    auto gathering = world->start_all_gather(full, shard, "kept");
    gathering.wait_on(c10::impl::VirtualGuardImpl(far_device().type()).getStream(far_device()));
    auto following = another->start_all_gather(twice, full, "what was gathered");
    if (world->rank() == 0) world->barrier("rank 0 has gone on");
    EXPECT_TRUE(at::equal(full.cpu(), expected));
    following.finish();
    EXPECT_TRUE(at::equal(twice.cpu(), at::cat({expected, expected})));
    other.synchronize();
    EXPECT_TRUE(at::equal(later.cpu(), at::full({2000}, 7.0f)));
  };
  spawn_late_ranks(2, body, with_nccl(GetParam(), {{"STAND_IN_SEED", "11"}}));
}

// Longer than the others take to give up and to say who is missing.
void stay_away() { std::this_thread::sleep_for(seconds(12)); }

class NcclMissing : public testing::TestWithParam<std::tuple<bool, Via>> {};
INSTANTIATE_TEST_SUITE_P(Communicator, NcclMissing,
                         testing::Combine(testing::Bool(), testing::Values(Via::kLibrary, Via::kTorch)),
                         [](const auto& info) {
                           return (std::get<0>(info.param) ? "IsThereThrough" : "IsToComeThrough") +
                                  name_of(std::get<1>(info.param));
                         });

TEST_P(NcclMissing, ARankThatDoesNotComeIsNamed) {
  const auto body = [is_there = std::get<0>(GetParam())](const World& world) {
    if (is_there) warm_up(world);
    if (world->rank() == 2) {
      if (!is_there) warm_up(world->subgroup({0, 2}, "some"));
      return stay_away();
    }
    if (!is_there && world->rank() == 0) warm_up(world->subgroup({0, 2}, "some"));
    world->start_all_gather(at::empty({3}, there()), at::ones({1}, there()), "layers.3").finish();
  };
  const auto outcomes = outcomes_of_ranks(3, body, within(seconds(2), with_nccl(std::get<1>(GetParam()))));
  for (const int rank : {0, 1}) {
    EXPECT_EQ(outcomes[rank].exit_code, 1);
    EXPECT_THAT(outcomes[rank].output, HasSubstr("rank 2 did not join the all-gather of 'layers.3' within 2.00 s"));
  }
}

TEST_P(Nccl, ARankThatIsMissedByAStreamAloneFailsTheNextCall) {
  const auto body = [](const World& world) {
    warm_up(world);
    if (world->rank() == 1) return stay_away();
    world->start_all_gather(at::empty({2}, there()), at::ones({1}, there()), "layers.3").wait_on(new_stream());
    std::this_thread::sleep_for(seconds(9));
    auto next = world->start_broadcast(at::ones({1}, there()), 0, "the next call");
    ADD_FAILURE() << "nothing was thrown";
    next.finish();
  };
  const auto outcomes = outcomes_of_ranks(2, body, within(seconds(2), with_nccl(GetParam())));
  EXPECT_EQ(outcomes[0].exit_code, 1);
  EXPECT_THAT(outcomes[0].output, AllOf(HasSubstr("rank 1 did not join"), Not(HasSubstr("nothing was thrown"))));
}

void gather_twice(const World& world) {
  warm_up(world);
  world->start_all_gather(at::empty({world->size() * 4}, there()), at::ones({4}, there()), "layers.3").finish();
}

TEST_P(Nccl, ARankThatDiesInsideACollectiveIsNamed) {
  const auto outcomes =
      outcomes_of_ranks(3, gather_twice, within(seconds(2), with_nccl(GetParam(), {}, {{"STAND_IN_DIE", "2"}})));
  EXPECT_EQ(outcomes[1].exit_code, 128 + SIGKILL);
  for (const int rank : {0, 2}) {
    EXPECT_EQ(outcomes[rank].exit_code, 1);
    EXPECT_THAT(outcomes[rank].output, HasSubstr("rank 1 did not join the all-gather of 'layers.3' within 2.00 s"));
  }
}

// What waits for it on streams goes on then, as it is aborted.
TEST_P(Nccl, ACollectiveThatStallsInsideNcclEndsWithinTheTimeout) {
  const auto body = [](const World& world) {
    warm_up(world);
    const auto gather = [&](const char* label) {
      return world->start_all_gather(at::empty({2}, there()), at::ones({1}, there()), label);
    };
    auto stalled = gather("layers.3");
    const c10::Stream other = new_stream();
    gather("layers.4").wait_on(other);
    try {
      stalled.finish();
    } catch (const Error& error) {
      other.synchronize();
      std::printf("%s; the stream went on\n", error.report().what.c_str());
    }
  };
  const auto outcomes =
      outcomes_of_ranks(2, body, within(seconds(2), with_nccl(GetParam(), {}, {{"STAND_IN_STALL", "2"}})));
  for (const auto& outcome : outcomes) {
    EXPECT_THAT(outcome.output, AllOf(HasSubstr("the all-gather of 'layers.3' did not end within 2.00 s, though all "
                                                "ranks have begun it"),
                                      HasSubstr("the stream went on")));
  }
}

TEST_P(Nccl, AnErrorThatNcclReportsLaterIsTold) {
  const auto outcomes =
      outcomes_of_ranks(2, gather_twice, within(seconds(2), with_nccl(GetParam(), {}, {{"STAND_IN_ERROR", "2"}})));
  EXPECT_EQ(outcomes[1].exit_code, 1);
  EXPECT_THAT(outcomes[1].output,
              HasSubstr(std::string("the all-gather of 'layers.3' failed: NCCL reports: ") +
                        (GetParam() == Via::kTorch ? "torch's NCCL group has met an error" : "remote process exited")));
}

TEST_P(Nccl, AFunctionThatFailsIsNamed) {
  for (const char* function : {"ncclAllGather", "ncclCommInitRankConfig"}) {
    const auto outcomes =
        outcomes_of_ranks(2, warm_up, within(seconds(2), with_nccl(GetParam(), {{"STAND_IN_FAIL", function}})));
    EXPECT_THAT(outcomes[0].output,
                AllOf(HasSubstr(std::string("the all-gather of 'first' failed: ") + function + ": "),
                      HasSubstr("unhandled system error")));
  }
}

// The other rank's count is 5.
TEST_P(Nccl, CountsThatDifferAreSeenByTheStandIn) {
  const auto body = [](const World& world) {
    const int64_t numel = 4 + world->rank();
    world->start_all_gather(at::empty({2 * numel}, there()), at::ones({numel}, there()), "uneven").finish();
  };
  const auto outcomes = outcomes_of_ranks(2, body, within(seconds(2), with_nccl(GetParam())));
  EXPECT_THAT(outcomes[0].output + outcomes[1].output,
              AllOf(HasSubstr("count 16 meets operation 1 of kind 2 and count 20 of rank 1"),
                    HasSubstr("the all-gather of 'uneven' failed: NCCL reports: ")));
}

// With the host's bits, so through host memory.
void sums_have_the_hosts_bits(const World& world) {
  constexpr int64_t kNumel = 3000;
  for (const World& group : {world, world->with_channel("more")}) {
    at::Tensor sum = input_of(world->rank(), kNumel, at::kFloat).to(far_device());
    group->start_all_reduce(sum, 1, "sum").finish();
    EXPECT_TRUE(at::equal(sum.cpu(), sum_in_rank_order(3, kNumel, at::kFloat)));
  }
}

int count_of(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

void expect_host_memory(const test::SpawnOptions& options, const std::string& reason) {
  const auto outcomes = outcomes_of_ranks(3, sums_have_the_hosts_bits, options);
  std::string all;
  for (const auto& outcome : outcomes) {
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    all += outcome.output;
  }
  EXPECT_EQ(count_of(all, "go through host memory"), reason.empty() ? 0 : 1) << all;
  EXPECT_THAT(all, HasSubstr(reason));
}

TEST_P(Nccl, RanksThatShareADeviceAreRefusedOnAllRanks) {
  auto options = with_nccl(GetParam());
  options.ranks_a_host = 2;
  for (const auto& outcome : outcomes_of_ranks(3, sums_have_the_hosts_bits, options)) {
    EXPECT_EQ(outcome.exit_code, 1);
    EXPECT_THAT(outcome.output, HasSubstr("ranks 0 and 1 have the same device, far:0 of 0"));
  }
}

TEST_P(Nccl, RanksMayShareADeviceThroughHostMemory) {
  auto options = with_nccl(GetParam(), {{"TESSERA_NCCL_LIBRARY", "off"}});
  options.ranks_a_host = 2;
  expect_host_memory(options, "");
}

TEST(NcclLibrary, IsNotUsedWhereOneRankHasNone) {
  expect_host_memory(with_nccl(Via::kLibrary, {}, {{"TESSERA_NCCL_LIBRARY", "/nowhere/libnccl.so.2"}}),
                     "rank 1: NCCL could not be loaded: /nowhere/libnccl.so.2");
  expect_host_memory(with_nccl(Via::kLibrary, {}, {{"STAND_IN_VERSION", "21304"}}),
                     "has the version 2.13.4, which is older than 2.14.0");
}

TEST(NcclOfTorch, IsNotUsedWhereOneRankHasAnother) {
  expect_host_memory(with_nccl(Via::kTorch, {}, {{"TESSERA_NCCL_LIBRARY", test::nccl_stand_in()}}),
                     "rank 0 has NCCL from torch's own group, and rank 1 from TESSERA_NCCL_LIBRARY");
}

TEST_P(Nccl, NothingIsSaidWhereItIsOff) {
  expect_host_memory(with_nccl(GetParam(), {{"TESSERA_NCCL_LIBRARY", "off"}}), "");
}

std::string refusal_of(const std::string& library) {
  try {
    nccl::load_library(library);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kMachine);
    EXPECT_EQ(error.report().where, "TESSERA_NCCL_LIBRARY");
    EXPECT_THAT(error.report().fix, HasSubstr("TESSERA_NCCL_LIBRARY=off"));
    return error.report().what;
  }
  return "";
}

TEST(NcclLibrary, SaysWhatIsWrongWithIt) {
  EXPECT_THAT(refusal_of("/nowhere/libnccl.so.2"), HasSubstr("could not be loaded: /nowhere/libnccl.so.2"));
  EXPECT_THAT(refusal_of("libm.so.6"), HasSubstr("'libm.so.6' has no function ncclGetVersion"));
  EXPECT_EQ(refusal_of(test::nccl_stand_in()), "");
}

}  // namespace
}  // namespace tessera::comm::nccl_test
