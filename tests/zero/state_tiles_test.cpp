#include "tessera/zero/state_tiles.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/zero/swap_files.h"

namespace tessera::zero::state_tiles_test {
namespace {

constexpr int64_t kNumel = 2 * kTileAlign + 100, kPadded = 2 * kTileAlign + 128;

struct OneLargeUnit {
  explicit OneLargeUnit(const Policy& policy) : parameter(at::ones({kNumel}).requires_grad_(true)) {
    const std::vector<NamedParam> named{{{.name = "w"}, parameter}};
    sharded = ShardedModel::create({{"model", named}}, {.states = 1}, policy,
                                   comm::Mesh::data_parallel(comm::Group::alone()), nullptr);
    sharded->before_forward(0, {});
    const at::Tensor loss = (parameter * 3).sum();
    sharded->after_forward(0, {loss});
    sharded->begin_backward();
    loss.backward();
    sharded->finish_backward();
  }

  at::Tensor parameter;
  std::shared_ptr<ShardedModel> sharded;
};

Policy on_disk(const test::TemporaryFolder& folder, bool pipelined) {
  Policy policy = policy_of_stage(2, at::kFloat, 1);
  policy.offload.optimizer = test::swap_file(folder);
  policy.offload.optimizer_options.pipeline_read = policy.offload.optimizer_options.pipeline_write = pipelined;
  policy.offload.sub_group_size = kTileAlign;
  return policy;
}

// Adds the gradient to the state; returns where the tiles lay.
std::vector<std::pair<int64_t, int64_t>> add_gradients(ShardedModel& model, bool cuts) {
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (StateTiles tiles(model, cuts); tiles.next(); tiles.put_back()) {
    const StateTile& tile = tiles.tile();
    ranges.emplace_back(tile.range.begin, tile.range.end);
    EXPECT_EQ(tile.first_of_unit, tile.range.begin == 0);
    EXPECT_EQ(tile.last_of_unit, tile.range.end == kPadded);
    EXPECT_EQ(tile.weight.numel(), tile.range.numel());
    tile.state[0].add_(tile.grad);
  }
  return ranges;
}

TEST(StateTiles, InMemoryAreOneAUnit) {
  OneLargeUnit model(policy_of_stage(2, at::kFloat, 1));
  EXPECT_EQ(add_gradients(*model.sharded, true).size(), 1u);
  EXPECT_EQ(model.sharded->units()[0]->optimizer_state()[0].load().sum().item<float>(), 3 * kNumel);
}

TEST(StateTiles, OnDiskAreCutAndComeBackChanged) {
  for (const bool pipelined : {false, true}) {
    const test::TemporaryFolder folder;
    OneLargeUnit model(on_disk(folder, pipelined));
    const auto ranges = add_gradients(*model.sharded, true);
    EXPECT_EQ(ranges, (std::vector<std::pair<int64_t, int64_t>>{
                          {0, kTileAlign}, {kTileAlign, 2 * kTileAlign}, {2 * kTileAlign, kPadded}}));
    add_gradients(*model.sharded, true);
    const at::Tensor state = model.sharded->units()[0]->optimizer_state()[0].load();
    EXPECT_TRUE(at::equal(state.narrow(0, 0, kNumel), at::full({kNumel}, 6.0)));
    EXPECT_EQ(tile_slots(*model.sharded), pipelined ? 3 : 1);
  }
}

TEST(StateTiles, AreWholeWhereTheOptimizerMayNotCutThem) {
  const test::TemporaryFolder folder;
  OneLargeUnit model(on_disk(folder, false));
  EXPECT_EQ(add_gradients(*model.sharded, false).size(), 1u);
}

TEST(StateTiles, AreNoLargerThanTheSubGroupAndNoSmallerThanAPage) {
  EXPECT_EQ(largest_tile({.sub_group_size = 3 * kTileAlign + 1}), 3 * kTileAlign);
  EXPECT_EQ(largest_tile({.sub_group_size = 1}), kTileAlign);
  EXPECT_EQ(largest_tile({}), 8 << 20);
}

}  // namespace
}  // namespace tessera::zero::state_tiles_test
