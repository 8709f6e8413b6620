// One rank of a job of mpirun, which test_mpi.py starts: runs the named checks, each over a connection of its own, and
// ends with 0 if they hold.
//
//   mpirun -n 2 mpi_ranks_tool all_gather_works_in_place …        TESSERA_BACKEND, TESSERA_TIMEOUT as for any rank
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <thread>

#include "tessera/base/error.h"
#include "tessera/comm/group.h"
#include "tessera/comm/rendezvous.h"
#include "tests/comm/group_checks.h"

namespace tessera::test {
namespace {

// Small integers: their sums are exact in any order.
at::Tensor values(int rank, int64_t numel) {
  return at::arange(numel, at::kInt).remainder_(1000).add_(rank * 1000).to(at::kFloat);
}

// The piece that travels at once is a small part of each tensor, and each rank waits first for what others wait for
// last.
void large_collectives_may_be_waited_for_in_any_order(World world) {
  constexpr int64_t kLarge = 3 << 20;
  const auto other = world->with_channel("other");
  at::Tensor a = at::empty({world->size() * kLarge}), shard = at::empty({kLarge});
  const at::Tensor full = values(world->rank(), world->size() * kLarge);
  auto gathering = world->start_all_gather(a, values(world->rank(), kLarge), "a");
  auto reducing = other->start_reduce_scatter(shard, full, 1, "b", /*bucket_numel=*/kLarge / 2);
  (world->rank() == 0 ? gathering : reducing).finish();
  (world->rank() == 0 ? reducing : gathering).finish();
  at::Tensor sum = at::zeros_like(full);
  std::vector<at::Tensor> shards;
  for (int rank = 0; rank < world->size(); ++rank) {
    shards.push_back(values(rank, kLarge));
    sum += values(rank, world->size() * kLarge);
  }
  EXPECT_TRUE(at::equal(a, at::cat(shards)));
  EXPECT_TRUE(at::equal(shard, sum.narrow(0, world->rank() * kLarge, kLarge)));
}

// MPI counts in int. What rank 0 sends is zeros that were never written to, so it costs no memory.
void a_message_may_have_more_bytes_than_an_int_counts(World world) {
  constexpr int64_t kBytes = (int64_t{2} << 30) + 12345;
  at::Tensor tensor = world->rank() == 0 ? at::zeros({kBytes}, at::kByte) : at::empty({kBytes}, at::kByte);
  if (world->rank() == 0) {
    tensor[kBytes - 1].fill_(7);
    tensor[int64_t{1} << 30].fill_(8);
    world->start_send(tensor, 1, "much").finish();
  } else {
    world->start_receive(tensor, 0, "much").finish();
    EXPECT_EQ(tensor[kBytes - 1].item<int>(), 7);
    EXPECT_EQ(tensor[int64_t{1} << 30].item<int>(), 8);
  }
}

// A receive that an exception gave up must not keep the others, nor the end, from coming.
void what_nobody_waits_for_is_left_alone(World world) {
  {
    const auto other = world->with_channel("other");
    const auto forgotten = other->start_receive(at::empty({1000}), (world->rank() + 1) % world->size(), "nothing");
  }
  collectives_agree_with_their_formulas(world);
}

// A data loader's worker that ends by exit(), which would say goodbye in its parent's name.
void a_fork_leaves_mpi_to_its_parent(World world) {
  const pid_t child = fork();
  if (child == 0) {
    try {
      ranks_diverge(world);
      std::exit(1);
    } catch (const Error& error) {
      std::exit(std::string_view(error.what()).find("fork") == std::string_view::npos ? 2 : 0);
    }
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  collectives_agree_with_their_formulas(world);
}

void rank_1_comes_late(World world) {
  if (world->rank() == 1) std::this_thread::sleep_for(std::chrono::seconds(8));
  all_gather_works_in_place(world);
}

void rank_1_ends_badly(World world) {
  if (world->rank() == 1) std::exit(3);
  all_gather_works_in_place(world);
}

struct Check {
  std::string_view name;
  void (*body)(World);
};

#define CHECK_NAMED(body) \
  {                       \
#body, body           \
  }
constexpr Check kChecks[] = {
    CHECK_NAMED(collectives_agree_with_their_formulas),
    CHECK_NAMED(texts_come_in_rank_order),
    CHECK_NAMED(all_gather_works_in_place),
    CHECK_NAMED(groups_of_every_mesh_exchange_at_once),
    CHECK_NAMED(channels_may_interleave_differently),
    CHECK_NAMED(messages_between_two_ranks_come_in_order),
    CHECK_NAMED(large_collectives_may_be_waited_for_in_any_order),
    CHECK_NAMED(a_message_may_have_more_bytes_than_an_int_counts),
    CHECK_NAMED(what_nobody_waits_for_is_left_alone),
    CHECK_NAMED(a_fork_leaves_mpi_to_its_parent),
    CHECK_NAMED(ranks_diverge),
    CHECK_NAMED(rank_1_dies),
    CHECK_NAMED(rank_1_comes_late),
    CHECK_NAMED(rank_1_ends_badly),
};
#undef CHECK_NAMED

void run_check(std::string_view name) {
  for (const Check& check : kChecks) {
    if (check.name != name) continue;
    const World world = comm::init_distributed();
    check.body(world);
    world->barrier("end of the check");
    return;
  }
  throw Error(ErrorKind::kUsage, {"there is no such check", std::string(name), "see kChecks"});
}

}  // namespace
}  // namespace tessera::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  try {
    for (int index = 1; index < argc; ++index) tessera::test::run_check(argv[index]);
  } catch (const tessera::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return tessera::exit_code(error.kind());
  }
  return testing::UnitTest::GetInstance()->Failed() ? 1 : 0;
}
