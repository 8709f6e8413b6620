// Every number of ranks and every stage loads what every other has saved: the same bits of weights and optimizer state,
// and the losses of a run that never stopped.
#include <gtest/gtest.h>

#include <tuple>

#include "tessera/checkpoint/inspect.h"
#include "tests/engine/checkpoint_runs.h"
#include "tests/support/spawn_ranks.h"
#include "tests/support/temporary_folder.h"

namespace tessera::matrix_test {
namespace {

using test::config_of;
using test::Frozen;
using test::take_steps;

constexpr int kSavedAt = 3, kNext = 10;

class SavedBy : public testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(SavedBy, IsLoadedByEveryOther) {
  const auto [save_ranks, save_stage] = GetParam();
  const test::TemporaryFolder folder;
  test::spawn_ranks(save_ranks, [&, stage = save_stage](const std::shared_ptr<comm::Group>& world) {
    const auto engine = initialize(std::make_shared<Frozen>(), config_of(stage, world->size()), {.world = world});
    take_steps(*engine, kSavedAt);
    engine->save_checkpoint(folder.path() / "saved", "", {{"note", "hello"}}, {.in_background = stage % 2 == 0});
  });
  for (const int ranks : {1, 2, 3, 4}) {
    test::spawn_ranks(ranks, [&, save_ranks = save_ranks](const std::shared_ptr<comm::Group>& world) {
      for (const int stage : {0, 1, 2, 3}) {
        SCOPED_TRACE("loaded by " + std::to_string(ranks) + " at stage " + std::to_string(stage));
        const auto make = [&] {
          return initialize(std::make_shared<Frozen>(), config_of(stage, ranks), {.world = world});
        };
        const auto unbroken = make();
        take_steps(*unbroken, kSavedAt);
        const std::vector<double> want = take_steps(*unbroken, kNext);

        const auto resumed = make();
        take_steps(*resumed, 2);  // what was there before must not shine through
        const auto loaded = resumed->load_checkpoint(folder.path() / "saved");
        ASSERT_TRUE(loaded.has_value());
        EXPECT_EQ(loaded->client_state.at("note"), "hello");
        EXPECT_EQ(resumed->global_steps(), kSavedAt);

        const std::string again = "again" + std::to_string(stage) + "of" + std::to_string(ranks);
        resumed->save_checkpoint(folder.path() / again);
        if (world->rank() == 0) {
          EXPECT_TRUE(checkpoint::compare(folder.path() / "saved", folder.path() / again).empty());
        }
        const std::vector<double> got = take_steps(*resumed, kNext);
        for (int i = 0; i < kNext; ++i) {
          if (save_ranks == ranks) {
            EXPECT_EQ(got[i], want[i]) << "step " << i;
          } else {
            EXPECT_NEAR(got[i], want[i], 1e-6 * std::abs(want[i])) << "step " << i;
          }
        }
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Matrix, SavedBy, testing::Combine(testing::Values(1, 2, 3, 4), testing::Values(0, 1, 2, 3)),
                         [](const auto& info) {
                           return "Ranks" + std::to_string(std::get<0>(info.param)) + "Stage" +
                                  std::to_string(std::get<1>(info.param));
                         });

}  // namespace
}  // namespace tessera::matrix_test
