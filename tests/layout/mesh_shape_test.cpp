#include "tessera/layout/mesh_shape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "tessera/base/error.h"

namespace tessera::layout::mesh_shape_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Every way to write `ranks` as a product of sizes on these axes.
void each_factorisation(int ranks, const std::vector<std::string>& names, std::vector<Axis> chosen,
                        const std::function<void(const std::vector<Axis>&)>& visit) {
  if (chosen.size() == names.size()) {
    if (ranks == 1) visit(chosen);
    return;
  }
  for (int size = 1; size <= ranks; ++size) {
    if (ranks % size != 0) continue;
    std::vector<Axis> longer = chosen;
    longer.push_back({names[chosen.size()], size});
    each_factorisation(ranks / size, names, longer, visit);
  }
}

const std::vector<std::string> kNames = {"pp", "dp_replicate", "dp_shard", "cp", "tp"};

TEST(MeshShape, GroupsOfAnyAxesPartitionTheRanksInEveryFactorisationOfUpTo16) {
  int shapes = 0;
  for (int ranks = 1; ranks <= 16; ++ranks) {
    each_factorisation(ranks, kNames, {}, [&](const std::vector<Axis>& axes) {
      ++shapes;
      const MeshShape mesh(axes);
      ASSERT_EQ(mesh.ranks(), ranks);
      for (unsigned chosen = 0; chosen < 32; ++chosen) {
        std::vector<std::string> names;
        int size = 1;
        for (size_t axis = 0; axis < axes.size(); ++axis) {
          if ((chosen >> axis & 1U) == 0) continue;
          names.push_back(axes[axis].name);
          size *= axes[axis].size;
        }
        std::set<std::vector<int>> groups;
        std::multiset<int> seen;
        for (int rank = 0; rank < ranks; ++rank) {
          const std::vector<int> members = mesh.members(rank, names);
          ASSERT_EQ(static_cast<int>(members.size()), size);
          ASSERT_THAT(members, testing::Contains(rank));
          ASSERT_TRUE(std::is_sorted(members.begin(), members.end()));  // ranks count row by row
          for (const int member : members) ASSERT_EQ(mesh.members(member, names), members);
          if (groups.insert(members).second) seen.insert(members.begin(), members.end());
        }
        ASSERT_EQ(static_cast<int>(groups.size()), ranks / size);
        for (int rank = 0; rank < ranks; ++rank) ASSERT_EQ(seen.count(rank), 1u);
      }
      ASSERT_EQ(mesh.parts() * mesh.replicas(), ranks);
      ASSERT_EQ(mesh.readers() * mesh.size("cp"), mesh.replicas());
    });
  }
  EXPECT_GT(shapes, 200);
}

TEST(MeshShape, TheLastAxisIsThatOfNeighbours) {
  const MeshShape mesh({{"pp", 2}, {"dp_shard", 3}, {"tp", 2}});
  EXPECT_EQ(mesh.coordinate(7, "pp"), 1);
  EXPECT_EQ(mesh.coordinate(7, "dp_shard"), 0);
  EXPECT_EQ(mesh.coordinate(7, "tp"), 1);
  EXPECT_THAT(mesh.members(7, {"tp"}), ElementsAre(6, 7));
  EXPECT_THAT(mesh.members(7, {"dp_shard"}), ElementsAre(7, 9, 11));
  EXPECT_THAT(mesh.members(7, {"tp", "pp"}), ElementsAre(0, 1, 6, 7));  // whatever the order in which they are named
  EXPECT_EQ(mesh.describe(7), "pp 1, dp_shard 0, tp 1");
  EXPECT_THAT(mesh.data_axes(), ElementsAre("dp_shard"));
  EXPECT_THAT(mesh.model_axes(), ElementsAre("pp", "tp"));
  EXPECT_EQ(mesh.parts(), 4);
}

TEST(MeshShape, AnAxisThatIsNotThereHasSizeOne) {
  const MeshShape mesh = MeshShape::of_data_parallel(4);
  EXPECT_EQ(mesh.size("tp"), 1);
  EXPECT_EQ(mesh.coordinate(3, "tp"), 0);
  EXPECT_THAT(mesh.members(3, {"tp"}), ElementsAre(3));
  EXPECT_EQ(mesh.describe(3), "");
  EXPECT_EQ(MeshShape({{"dp_shard", 1}, {"tp", 4}}).describe(3), "tp 3");
}

TEST(MeshShape, OneAxisMayTakeWhatTheOthersLeave) {
  const MeshShape mesh = MeshShape::of_world(12, {{"pp", 3}, {"dp_shard", 0}, {"tp", 2}});
  EXPECT_EQ(mesh.size("dp_shard"), 2);
}

std::string refusal(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.what();
  }
  return "nothing was refused";
}

TEST(MeshShape, AWorldThatDoesNotFactorIsRefusedWithTheNearestThatDo) {
  const std::string left = refusal([] { MeshShape::of_world(8, {{"pp", 3}, {"dp_shard", 0}, {"tp", 2}}); });
  EXPECT_THAT(left, HasSubstr("8 ranks do not factor into pp 3 × dp_shard × tp 2"));
  EXPECT_THAT(left, HasSubstr("use 6 or 12 ranks, or pp 2"));
  const std::string fixed = refusal([] { MeshShape::of_world(8, {{"pp", 4}, {"tp", 4}}); });
  EXPECT_THAT(fixed, HasSubstr("use 16 ranks, or pp 2, or tp 2"));
  EXPECT_THAT(refusal([] { MeshShape::of_world(3, {{"dp_shard", 0}, {"tp", 4}}); }), HasSubstr("use 4 ranks, or tp 3"));
  EXPECT_THAT(refusal([] { MeshShape::of_world(8, {{"a", 0}, {"b", 0}}); }), HasSubstr("both take what is left"));
  EXPECT_THAT(refusal([] { MeshShape({{"tp", 2}, {"tp", 2}}); }), HasSubstr("comes twice"));
  EXPECT_THAT(refusal([] { MeshShape({{"tp", 0}}); }), HasSubstr("size 0"));
  EXPECT_THAT(refusal([] { MeshShape({{"a", 100000}, {"b", 100000}}); }), HasSubstr("too many ranks"));
}

TEST(MeshShape, PlacesThatOthersGaveMustBeAMesh) {
  const std::vector<Axis> axes{{"dp_shard", 2}, {"tp", 2}};
  const MeshShape transposed(axes, {{0, 0}, {1, 0}, {0, 1}, {1, 1}});  // neighbours share data, not the model
  EXPECT_THAT(transposed.members(0, {"dp_shard"}), ElementsAre(0, 1));
  EXPECT_THAT(transposed.members(1, {"tp"}), ElementsAre(1, 3));
  EXPECT_THAT(refusal([&] { MeshShape(axes, {{0, 0}, {1, 0}, {0, 1}, {0, 1}}); }), HasSubstr("do not make the mesh"));
  EXPECT_THAT(refusal([&] { MeshShape(axes, {{0, 0}, {1, 0}, {0, 1}}); }), HasSubstr("places of 3 ranks"));
  EXPECT_THAT(refusal([&] { MeshShape(axes, {{0, 0}, {1, 0}, {0, 1}, {2, 1}}); }), HasSubstr("do not make the mesh"));
}

}  // namespace
}  // namespace tessera::layout::mesh_shape_test
