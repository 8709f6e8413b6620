#include "tessera/zero/data_groups.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/spawn_ranks.h"

namespace tessera::zero::data_groups_test {
namespace {

using layout::kReplicateAxis;
using layout::kShardAxis;

// 2 replicas x 2 shards x 2 parts of the model: rank = 4 * replica + 2 * shard + part.
TEST(DataGroups, AreTheAxesOfTheMeshAndNumberedAsTheHeaderSays) {
  test::spawn_ranks(8, [](const std::shared_ptr<comm::Group>& world) {
    comm::Mesh mesh(world, layout::MeshShape({{kReplicateAxis, 2}, {kShardAxis, 2}, {"tp", 2}}));
    const int rank = world->rank(), part = rank % 2, shard = rank / 2 % 2, replica = rank / 4;
    const DataGroups groups = DataGroups::of(mesh, /*shards_anything=*/true);
    EXPECT_THAT(groups.all->members(), testing::ElementsAre(part, 2 + part, 4 + part, 6 + part));
    EXPECT_THAT(groups.shard->members(), testing::ElementsAre(4 * replica + part, 4 * replica + 2 + part));
    EXPECT_THAT(groups.replicate->members(), testing::ElementsAre(2 * shard + part, 4 + 2 * shard + part));
    EXPECT_THAT(groups.parts->members(), testing::ElementsAre(rank - part, rank - part + 1));
    EXPECT_EQ(groups.all->rank(), groups.replicate->rank() * groups.shard->size() + groups.shard->rank());

    const DataGroups unsharded = DataGroups::of(mesh, /*shards_anything=*/false);
    EXPECT_EQ(unsharded.shard->members(), groups.all->members());
    EXPECT_EQ(unsharded.replicate->size(), 1);
  });
}

// 2 replicas x 2 shards x 2 ranks of experts: rank = 4 * replica + 2 * shard + expert.
TEST(DataGroups, OfExpertsLeaveOutTheRanksThatHaveOthers) {
  test::spawn_ranks(8, [](const std::shared_ptr<comm::Group>& world) {
    comm::Mesh mesh(world, layout::MeshShape({{kReplicateAxis, 2}, {kShardAxis, 2}, {layout::kExpertAxis, 2}}));
    const int rank = world->rank(), expert = rank % 2, replica = rank / 4;
    const DataGroups dense = DataGroups::of(mesh, /*shards_anything=*/true);
    EXPECT_EQ(dense.all->size(), 8);
    EXPECT_THAT(dense.shard->members(),
                testing::ElementsAre(4 * replica, 4 * replica + 1, 4 * replica + 2, 4 * replica + 3));
    const DataGroups experts = DataGroups::of(mesh, /*shards_anything=*/true, {layout::kExpertAxis});
    EXPECT_THAT(experts.all->members(), testing::ElementsAre(expert, 2 + expert, 4 + expert, 6 + expert));
    EXPECT_THAT(experts.shard->members(), testing::ElementsAre(4 * replica + expert, 4 * replica + 2 + expert));
    EXPECT_THAT(experts.replicate->members(), testing::ElementsAre(rank % 4, 4 + rank % 4));
    EXPECT_EQ(DataGroups::of(mesh, false, {layout::kExpertAxis}).shard->members(), experts.all->members());
    EXPECT_THAT(mesh.replica_group()->members(), testing::ElementsAreArray(experts.all->members()));
    EXPECT_THAT(mesh.part_group()->members(), testing::ElementsAre(rank - expert, rank - expert + 1));
  });
}

// 4 shards x 2 ranks of experts, in inner groups of 4: rank = 2 * shard + expert.
TEST(DataGroups, LevelsAreConsecutiveRanksAndThoseInTheirPlaces) {
  test::spawn_ranks(8, [](const std::shared_ptr<comm::Group>& world) {
    comm::Mesh mesh(world, layout::MeshShape({{kShardAxis, 4}, {layout::kExpertAxis, 2}}));
    const int rank = world->rank(), first = rank / 4 * 4, place = rank % 4, expert = rank % 2;
    const DataGroups dense = DataGroups::of(mesh, true, {}, /*inner_ranks=*/4);
    EXPECT_THAT(dense.inner->members(), testing::ElementsAre(first, first + 1, first + 2, first + 3));
    EXPECT_THAT(dense.outer->members(), testing::ElementsAre(place, 4 + place));
    EXPECT_EQ(dense.shard->rank(), dense.outer->rank() * dense.inner->size() + dense.inner->rank());
    const DataGroups experts = DataGroups::of(mesh, true, {layout::kExpertAxis}, 4);
    EXPECT_THAT(experts.inner->members(), testing::ElementsAre(first + expert, first + 2 + expert));
    EXPECT_THAT(experts.outer->members(), testing::ElementsAre(place, 4 + place));
    for (const int one_level : {0, 8}) {
      const DataGroups all = DataGroups::of(mesh, true, {}, one_level);
      EXPECT_EQ(all.inner->members(), all.shard->members());
      EXPECT_EQ(all.outer->size(), 1);
    }
  });
}

TEST(DataGroups, OfAChannelAreTheSameRanks) {
  test::spawn_ranks(2, [](const std::shared_ptr<comm::Group>& world) {
    const DataGroups groups = DataGroups::of(*comm::Mesh::data_parallel(world), true);
    const DataGroups channel = groups.with_channel("gathers");
    for (const auto& [own, other] : {std::pair(groups.all, channel.all), std::pair(groups.shard, channel.shard)}) {
      EXPECT_EQ(own->members(), other->members());
      EXPECT_NE(own, other);
    }
    // Each rank begins with another channel: a shared count would mix the two up.
    const auto& first = world->rank() == 0 ? groups : channel;
    const auto& second = world->rank() == 0 ? channel : groups;
    at::Tensor mine = at::full({1}, world->rank(), at::kFloat), a = at::empty({2}), b = at::empty({2});
    auto gathering = first.all->start_all_gather(world->rank() == 0 ? a : b, mine, "x");
    auto other = second.all->start_all_gather(world->rank() == 0 ? b : a, mine, "x");
    gathering.finish();
    other.finish();
    EXPECT_TRUE(at::equal(a, b));
  });
}

}  // namespace
}  // namespace tessera::zero::data_groups_test
