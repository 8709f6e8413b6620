#include "tessera/comm/mesh.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "tessera/base/error.h"
#include "tests/comm/group_checks.h"
#include "tests/support/spawn_ranks.h"

namespace tessera::comm::mesh_test {
namespace {

using test::outcomes_of_ranks;
using test::spawn_ranks;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr int kMostRanks = 16;

class MeshOn : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Backends, MeshOn, testing::Values("gloo", "shm"), [](const auto& info) { return info.param; });

TEST_P(MeshOn, GroupsOfEveryFactorisationExchangeAtOnce) {
  spawn_ranks(kMostRanks, test::groups_of_every_mesh_exchange_at_once, {.backend = GetParam()});
}

// Hosts of four: groups lie within a host, across hosts at one place, across hosts in blocks, or anyhow.
TEST(MeshOnHosts, GroupsOfEveryFactorisationExchangeAtOnce) {
  spawn_ranks(kMostRanks, test::groups_of_every_mesh_exchange_at_once, {.ranks_a_host = 4});
}

TEST(Mesh, WhereAGroupHoldsAllRanksItIsTheWorld) {
  spawn_ranks(2, [](const std::shared_ptr<Group>& world) {
    Mesh mesh(world, layout::MeshShape({{"pp", 1}, {"dp_shard", 2}, {"tp", 1}}));
    EXPECT_EQ(mesh.group({"dp_shard"}), world);
    EXPECT_EQ(mesh.group({"tp"})->size(), 1);
    EXPECT_EQ(mesh.group({"tp"}), mesh.group({"tp"}));
  });
}

// As the groups of another framework may lie: neighbours share data here.
TEST(Mesh, TakesThePlacesThatRanksSayTheyHave) {
  spawn_ranks(4, [](const std::shared_ptr<Group>& world) {
    const int rank = world->rank();
    const auto mesh = Mesh::of_coordinates(world, {"dp_shard", "tp"}, {rank % 2, rank / 2});
    EXPECT_THAT(mesh->group({"dp_shard"})->members(), ElementsAre(rank / 2 * 2, rank / 2 * 2 + 1));
    EXPECT_THAT(mesh->group({"tp"})->members(), ElementsAre(rank % 2, rank % 2 + 2));
    at::Tensor sum = at::full({1}, static_cast<float>(rank));
    mesh->group({"tp"})->start_all_reduce(sum, 1, "sum").finish();
    EXPECT_EQ(sum.item<float>(), static_cast<float>(2 * (rank % 2) + 2));
  });
  spawn_ranks(3, [](const std::shared_ptr<Group>& world) {
    EXPECT_THROW(Mesh::of_coordinates(world, {"dp_shard", "tp"}, {world->rank(), 0 * world->rank() + 1}), Error);
  });
}

TEST(Mesh, AShapeOfAnotherWorldIsRefused) {
  EXPECT_THROW(Mesh(Group::alone(), layout::MeshShape::of_data_parallel(2)), Error);
}

TEST(Mesh, AnErrorNamesTheGroupAndThePlace) {
  const auto body = [](const std::shared_ptr<Group>& world) {
    Mesh mesh(world, layout::MeshShape({{"dp_shard", 2}, {"tp", 2}}));
    at::Tensor full = at::zeros({2});
    if (world->rank() == 3)
      std::this_thread::sleep_for(std::chrono::seconds(5));  // though the report asks for its stack
    mesh.group({"tp"})->start_all_gather(full, at::zeros({1}), "layers.3").finish();
  };
  for (const std::string backend : {"gloo", "shm"}) {
    const auto outcomes = outcomes_of_ranks(4, body, {.timeout = std::chrono::seconds(2), .backend = backend});
    EXPECT_EQ(outcomes[0].exit_code, outcomes[1].exit_code) << "whose group is complete\n"
                                                            << outcomes[0].output << "\n"
                                                            << outcomes[1].output;
    EXPECT_EQ(outcomes[2].exit_code, 1);
    EXPECT_THAT(outcomes[2].output,
                HasSubstr("rank 3 (dp_shard 1, tp 1) did not join the all-gather of 'layers.3' in group tp within"));
    EXPECT_THAT(outcomes[2].output, HasSubstr("rank 2 (dp_shard 1, tp 0)"));
  }
}

}  // namespace
}  // namespace tessera::comm::mesh_test
