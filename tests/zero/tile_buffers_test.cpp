#include "tessera/zero/tile_buffers.h"

#include <gtest/gtest.h>

#include "tessera/zero/state_tiles.h"
#include "tests/zero/swap_files.h"
#include "tests/zero/three_params.h"

namespace tessera::zero::tile_buffers_test {
namespace {

// So that a step takes no new memory.
TEST(TileBuffers, StayWithTheModelFromStepToStep) {
  const test::TemporaryFolder folder;
  Policy policy = policy_of_stage(2, at::kFloat, 1);
  policy.offload.optimizer = test::swap_file(folder);
  test::ThreeParams model(policy, {.states = 2}, comm::Group::alone());
  std::vector<const void*> first;
  for (int step = 0; step < 2; ++step) {
    model.run_backward();
    for (StateTiles tiles(*model.sharded, true); tiles.next();) tiles.put_back();
    std::vector<const void*> places;
    for (const TileBuffers& tile : model.sharded->tile_buffers()) {
      for (const TileBuffers::Part& part : tile.parts) {
        EXPECT_EQ(part.transfer, 0u) << "nothing is left in flight";
        places.push_back(part.buffer.data());
      }
    }
    EXPECT_EQ(places.size(), 5u);  // weight, gradient, compute, two states
    if (step == 0) first = places;
    EXPECT_EQ(places, first);
    model.sharded->reducer().clear();
  }
}

}  // namespace
}  // namespace tessera::zero::tile_buffers_test
