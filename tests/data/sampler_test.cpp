#include "tessera/data/sampler.h"

#include <gmock/gmock.h>

#include <algorithm>

namespace tessera::data::sampler_test {
namespace {

using testing::ElementsAre;

// PyTorch's:
//   g = torch.Generator(); g.manual_seed(seed); torch.randperm(n, generator=g).tolist()
TEST(EpochOrder, IsTorchsRandomPermutation) {
  EXPECT_THAT(epoch_order({.dataset_size = 1, .seed = 0}, 0), ElementsAre(0));
  EXPECT_THAT(epoch_order({.dataset_size = 10, .seed = 0}, 0), ElementsAre(4, 1, 7, 5, 3, 9, 0, 8, 6, 2));
  EXPECT_THAT(epoch_order({.dataset_size = 10, .seed = 42}, 0), ElementsAre(2, 6, 1, 8, 4, 5, 0, 9, 3, 7));
  // seed 2^32 + 3
  EXPECT_THAT(epoch_order({.dataset_size = 17, .seed = 4294967299}, 0),
              ElementsAre(16, 9, 1, 14, 4, 5, 6, 12, 15, 7, 0, 3, 2, 11, 13, 10, 8));
}

TEST(EpochOrder, SeedAndEpochAddUp) {
  EXPECT_EQ(epoch_order({.dataset_size = 100, .seed = 3}, 4), epoch_order({.dataset_size = 100, .seed = 7}, 0));
}

// torch.utils.data.DistributedSampler(range(10), num_replicas=4, rank=r, seed=7), set_epoch(1), its ranks interleaved.
TEST(EpochOrder, RepeatsItsStartToFillTheLastRound) {
  EXPECT_THAT(epoch_order({.dataset_size = 10, .world_size = 4, .seed = 7}, 1),
              ElementsAre(3, 5, 0, 1, 2, 6, 4, 7, 8, 9, 3, 5));
  EXPECT_THAT(epoch_order({.dataset_size = 10, .world_size = 4, .seed = 7, .drop_last = true}, 1),
              ElementsAre(3, 5, 0, 1, 2, 6, 4, 7));
  // As above with range(3), num_replicas=8, seed=1, epoch 0: repeated more than once.
  EXPECT_THAT(epoch_order({.dataset_size = 3, .world_size = 8, .seed = 1}, 0), ElementsAre(1, 2, 0, 1, 2, 0, 1, 2));
}

TEST(EpochOrder, IsTheFilesOrderWhenNotShuffled) {
  EXPECT_THAT(epoch_order({.dataset_size = 3, .world_size = 2, .shuffle = false}, 5), ElementsAre(0, 1, 2, 0));
}

TEST(EpochOrder, HasTheLengthThatIsSaid) {
  for (size_t n = 1; n < 20; ++n) {
    for (int64_t world = 1; world < 7; ++world) {
      for (const bool drop : {false, true}) {
        const SamplerOptions options{.dataset_size = n, .world_size = world, .drop_last = drop};
        EXPECT_EQ(epoch_order(options, 0).size(), epoch_length(options));
        EXPECT_EQ(epoch_length(options) % static_cast<size_t>(world), 0u);
      }
    }
  }
}

TEST(RankOrder, RanksTakeTurns) {
  SamplerOptions options{.dataset_size = 11, .world_size = 3, .seed = 5};
  const auto all = epoch_order(options, 2);
  for (options.rank = 0; options.rank < 3; ++options.rank) {
    const auto own = rank_order(options, 2);
    ASSERT_EQ(own.size(), 4u);
    for (size_t i = 0; i < own.size(); ++i) EXPECT_EQ(own[i], all[3 * i + static_cast<size_t>(options.rank)]);
  }
}

}  // namespace
}  // namespace tessera::data::sampler_test
