#include "tessera/layout/param_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/layout/box.h"
#include "tessera/layout/mesh_shape.h"

namespace tessera::layout::param_spec_test {
namespace {

using testing::HasSubstr;

std::vector<BoxRun> boxes_of_first_holders(const ParamSpec& spec, const MeshShape& mesh) {
  std::vector<BoxRun> runs;
  for (int rank = 0; rank < mesh.ranks(); ++rank) {
    const bool first_data = mesh.members(rank, mesh.data_axes()).front() == rank;
    if (!first_data || !is_first_holder(spec, mesh, rank)) continue;
    const Box box = local_box(spec, mesh, rank);
    runs.push_back({box, {0, box.numel()}});
  }
  return runs;
}

// Rows, columns, both over two axes, one dimension over two axes, and neither.
TEST(ParamSpec, TheFirstHoldersPartsAreTheWholeTensor) {
  const MeshShape mesh({{"pp", 2}, {"dp_replicate", 2}, {"dp_shard", 2}, {"tp", 3}});
  const std::vector<std::vector<Shard>> all = {
      {}, {{"tp", 0}}, {{"tp", 1}}, {{"pp", 0}, {"tp", 1}}, {{"pp", 1}, {"tp", 1}}, {{"tp", 1}, {"pp", 1}}};
  for (const std::vector<Shard>& shards : all) {
    const ParamSpec spec{.name = "w", .shape = {7, 12}, .shards = shards};
    EXPECT_EQ(why_not_covered(spec.shape, boxes_of_first_holders(spec, mesh)), "");
  }
}

TEST(ParamSpec, AnAxisOfExpertsIsOneOfDataForAllElse) {
  const MeshShape mesh({{"dp_shard", 2}, {"ep", 3}, {"tp", 2}}), alone({{"dp_shard", 6}, {"ep", 1}});
  const ParamSpec dense{.name = "w", .shape = {6, 4}, .shards = {{"tp", 1}}};
  const ParamSpec stacked{.name = "w", .shape = {6, 4}, .shards = {{"ep", 0}, {"tp", 1}}};
  const ParamSpec of_one{.name = "w", .shape = {6, 4}, .holders = {{"ep", {2}}}};
  EXPECT_EQ(data_axes_in_parts(dense, mesh), std::vector<std::string>());
  EXPECT_EQ(data_axes_in_parts(stacked, mesh), std::vector<std::string>{"ep"});
  EXPECT_EQ(data_axes_in_parts(of_one, mesh), std::vector<std::string>{"ep"});
  EXPECT_EQ(data_axes_in_parts(of_one, alone), std::vector<std::string>());
  EXPECT_EQ(mesh.parts(), 2);
  EXPECT_EQ(mesh.replicas(), 6);
  EXPECT_TRUE(MeshShape({{"dp_shard", 2}, {"ep", 3}}).holds_parts());
  EXPECT_FALSE(alone.holds_parts());
  EXPECT_EQ(MeshShape({{"dp_shard", 2}, {"ep", 3}}).describe(4), "dp_shard 1, ep 1");
  // Whoever is first among the ranks that share a unit writes it: of experts, once for each rank of the axis.
  std::vector<BoxRun> runs;
  for (int rank = 0; rank < mesh.ranks(); ++rank) {
    if (mesh.coordinate(rank, "dp_shard") > 0 || !is_first_holder(stacked, mesh, rank)) continue;
    const Box box = local_box(stacked, mesh, rank);
    runs.push_back({box, {0, box.numel()}});
  }
  EXPECT_EQ(why_not_covered(stacked.shape, runs), "");
}

// As torch.chunk cuts ten rows for four ranks.
TEST(ParamSpec, ADimensionThatDoesNotDivideLeavesTheLastRankFewer) {
  const MeshShape mesh({{"dp_shard", 2}, {"tp", 4}});
  const ParamSpec spec{.name = "w", .shape = {10, 2}, .shards = {{"tp", 0}}};
  const std::vector<std::pair<int64_t, int64_t>> expected = {{0, 3}, {3, 3}, {6, 3}, {9, 1}};
  for (int rank = 0; rank < mesh.ranks(); ++rank) {
    const Box box = local_box(spec, mesh, rank);
    const auto& [offset, extent] = expected[static_cast<size_t>(rank % 4)];
    EXPECT_EQ(box, (Box{{offset, 0}, {extent, 2}}));
  }
}

// Two key heads of four rows over four ranks, and three heads over two.
TEST(ParamSpec, PartsMayBeNamedAndTheFirstOfThoseThatHoldOneCountsIt) {
  const MeshShape mesh({{"dp_shard", 2}, {"tp", 4}});
  using Bounds = std::vector<int64_t>;
  const std::vector<std::pair<int64_t, int64_t>> shared = {{0, 4}, {0, 4}, {4, 8}, {4, 8}};
  const std::vector<std::pair<int64_t, int64_t>> uneven = {{0, 3}, {3, 5}, {5, 6}, {6, 8}};
  for (const auto& [bounds, parts] : {std::pair(Bounds{0, 4, 8}, shared), std::pair(Bounds{0, 3, 5, 6, 8}, uneven)}) {
    const ParamSpec spec{.name = "w", .shape = {8, 2}, .shards = {{"tp", 0, bounds}}};
    EXPECT_EQ(why_not_covered(spec.shape, boxes_of_first_holders(spec, mesh)), "");
    for (int rank = 0; rank < mesh.ranks(); ++rank) {
      const auto& [begin, end] = parts[static_cast<size_t>(rank % 4)];
      EXPECT_EQ(local_box(spec, mesh, rank), (Box{{begin, 0}, {end - begin, 2}}));
    }
  }
}

// Three matrices (2, 5) side by side in one (2, 15), each cut into columns 0:3 and 3:5.
TEST(ParamSpec, MatricesInOneAreEachCut) {
  const MeshShape mesh({{"dp_shard", 2}, {"tp", 2}});
  const ParamSpec spec{.name = "w", .shape = {2, 15}, .folded = {2, 3, 5}, .shards = {{"tp", 2, {0, 3, 5}}}};
  EXPECT_EQ(why_not_covered(spec.cut_shape(), boxes_of_first_holders(spec, mesh)), "");
  for (int rank = 0; rank < mesh.ranks(); ++rank) {
    const Box box = local_box(spec, mesh, rank);
    EXPECT_EQ(box, rank % 2 == 0 ? (Box{{0, 0, 0}, {2, 3, 3}}) : (Box{{0, 0, 3}, {2, 3, 2}}));
    EXPECT_EQ(shape_of_part(spec, box), (std::vector<int64_t>{2, rank % 2 == 0 ? 9 : 6}));
  }
}

TEST(ParamSpec, AFoldHasTheShapesElementsInItsOrder) {
  using Sizes = std::vector<int64_t>;
  for (const Sizes& fold : {Sizes{2, 3, 5}, Sizes{2, 15}, Sizes{2, 1, 15}, Sizes{1, 2, 15}}) {
    EXPECT_TRUE(is_fold(fold, {2, 15})) << testing::PrintToString(fold);
  }
  constexpr int64_t kHuge = int64_t{1} << 62;
  for (const Sizes& fold : {Sizes{}, Sizes{2}, Sizes{30}, Sizes{3, 10}, Sizes{2, 3, 5, 2}, Sizes{2, 3, 4},
                            Sizes{2, -3, -5}, Sizes{2, 0, 15}, Sizes{kHuge, kHuge, kHuge}}) {
    EXPECT_FALSE(is_fold(fold, {2, 15})) << testing::PrintToString(fold);
  }
}

TEST(ParamSpec, WhatCannotBeShardedIsRefusedByName) {
  const MeshShape mesh({{"dp_shard", 2}, {"tp", 4}});
  const auto refusal = [&](const std::vector<int64_t>& shape, const Shard& shard) -> std::string {
    try {
      local_box({.name = "layers.0.norm", .shape = shape, .shards = {shard}}, mesh, 0);
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing was refused";
  };
  EXPECT_THAT(refusal({8}, {"ep", 0}), HasSubstr("'layers.0.norm'"));
  EXPECT_THAT(refusal({8}, {"ep", 0}), HasSubstr("the axis 'ep', which the mesh does not have"));
  EXPECT_THAT(refusal({8}, {"tp", 1}), HasSubstr("no dimension 1"));
  EXPECT_THAT(refusal({3, 8}, {"tp", 0}), HasSubstr("leaves nothing for some of the 4 ranks"));
  EXPECT_THAT(refusal({5, 8}, {"tp", 0}), HasSubstr("leaves nothing"));  // 2, 2, 1 and none
  EXPECT_THAT(refusal({8, 8}, {"tp", 0, {0, 3, 5, 8}}), HasSubstr("do not make it up over the 4 ranks"));
  EXPECT_THAT(refusal({8, 8}, {"tp", 0, {0, 3, 5, 6, 7}}), HasSubstr("do not make it up"));
  EXPECT_THAT(refusal({8, 8}, {"tp", 0, {0, 3, 2, 6, 8}}), HasSubstr("do not make it up"));
  EXPECT_THROW(local_box({.name = "w", .shape = {8, 8}, .folded = {8, 3, 3}}, mesh, 0), Error);
}

}  // namespace
}  // namespace tessera::layout::param_spec_test
