#include "tessera/comm/collective_log.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "tessera/comm/group.h"
#include "tests/support/spawn_ranks.h"

namespace tessera::comm::collective_log_test {
namespace {

using std::chrono::milliseconds;

TEST(CollectiveLog, TableAddsUpWhatIsAlike) {
  const std::string table = table_of({{"all_gather_into_tensor", 2000, 2, milliseconds(3)},
                                      {"reduce_scatter_tensor", 2000, 2, milliseconds(1)},
                                      {"all_gather_into_tensor", 2000, 2, milliseconds(5)}});
  EXPECT_EQ(table,
            "collective                       message     count      total (ms)     mean (ms)\n"
            "all_gather_into_tensor           2.00 kB         2            8.00          4.00\n"
            "reduce_scatter_tensor            2.00 kB         1            1.00          1.00");
}

// An all-gather's message is one rank's part, so are a reduce-scatter's; an all-reduce of 64 elements is one of each.
TEST(CollectiveLog, HasEachCollectiveFromItsStartOn) {
  test::spawn_ranks(2, [](const std::shared_ptr<Group>& world) {
    at::Tensor full = at::zeros({64});
    const auto shard = full.narrow(0, 32 * world->rank(), 32);
    world->start_all_gather(full, shard, "before").finish();
    start_collective_log();
    world->start_all_gather(full, shard, "a").finish();
    world->start_reduce_scatter(shard, full, 1, "b").finish();
    world->start_broadcast(full, 0, "c").finish();
    if (world->rank() == 0) world->start_send(full, 1, "d").finish();
    if (world->rank() == 1) world->start_receive(full, 0, "d").finish();
    const std::vector<CollectiveCost> costs = take_collective_log();
    std::vector<std::pair<std::string, int64_t>> found;
    for (const CollectiveCost& cost : costs) {
      found.emplace_back(cost.operation, cost.bytes);
      EXPECT_GT(cost.time.count(), 0);
      EXPECT_EQ(cost.ranks, 2);
    }
    const std::vector<std::pair<std::string, int64_t>> expected{{"all_gather_into_tensor", 128},
                                                                {"reduce_scatter_tensor", 128},
                                                                {"broadcast", 256},
                                                                {world->rank() == 0 ? "send" : "recv", 256}};
    EXPECT_EQ(found, expected);
    EXPECT_TRUE(take_collective_log().empty());
  });
}

}  // namespace
}  // namespace tessera::comm::collective_log_test
