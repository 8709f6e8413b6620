// Training over meshes of more than one axis: replicas of sharded state, and ranks that hold different parts of a
// model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "tessera/base/error.h"
#include "tessera/checkpoint/inspect.h"
#include "tessera/zero/sharded_model.h"
#include "tests/engine/checkpoint_runs.h"
#include "tests/support/spawn_ranks.h"
#include "tests/support/temporary_folder.h"

namespace tessera::mesh_test {
namespace {

using layout::Axis;
using layout::MeshShape;
using test::config_of;
using test::spawn_ranks;
using test::take_steps;
using test::ThreeBlocks;

constexpr int kSteps = 5;

struct Trained {
  std::vector<double> losses;
  std::vector<at::Tensor> weights;
};

Trained train(const std::shared_ptr<comm::Mesh>& mesh, int stage) {
  const auto engine =
      initialize(std::make_shared<ThreeBlocks>(), config_of(stage, mesh->shape().replicas()), {.mesh = mesh});
  Trained trained{.losses = take_steps(*engine, kSteps), .weights = test::weights_of(*engine)};
  const zero::DataGroups& groups = engine->sharded_model().groups();
  const int shards = stage == 0 ? mesh->world()->size() : mesh->shape().size("dp_shard");
  for (const auto& unit : engine->sharded_model().units()) EXPECT_EQ(unit->layout().shards(), shards);
  EXPECT_EQ(groups.replicate->size(), mesh->world()->size() / shards);
  EXPECT_EQ(groups.replicate->bytes_sent() > 0, groups.replicate->size() > 1);
  return trained;
}

bool same_bits(const Trained& a, const Trained& b) {
  bool same = a.losses == b.losses;
  for (size_t param = 0; param < a.weights.size(); ++param)
    same = same && at::equal(a.weights[param], b.weights[param]);
  return same;
}

// Hybrid sharding. Shards of one rank, or replicas of one, add up in the order of a plain run; else sums of sums.
TEST(Mesh, ReplicasOfShardsTrainAsAPlainRunDoes) {
  spawn_ranks(4, [](const std::shared_ptr<comm::Group>& world) {
    for (const int stage : {0, 1, 2, 3}) {
      SCOPED_TRACE(testing::Message() << "stage " << stage);
      const Trained plain = train(comm::Mesh::data_parallel(world), stage);
      const auto on = [&](int replicas, int shards) {
        return train(std::make_shared<comm::Mesh>(
                         world, MeshShape({{layout::kReplicateAxis, replicas}, {layout::kShardAxis, shards}})),
                     stage);
      };
      EXPECT_TRUE(same_bits(on(1, 4), plain));
      EXPECT_TRUE(same_bits(on(4, 1), plain));
      const Trained hybrid = on(2, 2);
      for (int step = 0; step < kSteps; ++step) {
        EXPECT_NEAR(hybrid.losses[step], plain.losses[step], 1e-6 * std::abs(plain.losses[step]));
      }
      if (stage == 0) {
        EXPECT_TRUE(same_bits(hybrid, plain));
      }
    }
  });
}

TEST(Mesh, ReplicasDealOutACheckpointAndAnyOtherMeshLoadsIt) {
  const test::TemporaryFolder folder;
  spawn_ranks(4, [&](const std::shared_ptr<comm::Group>& world) {
    const auto mesh =
        std::make_shared<comm::Mesh>(world, MeshShape({{layout::kReplicateAxis, 2}, {layout::kShardAxis, 2}}));
    const auto engine = initialize(std::make_shared<ThreeBlocks>(), config_of(3, 4), {.mesh = mesh});
    take_steps(*engine, kSteps);
    engine->save_checkpoint(folder.path() / "hybrid");
    const auto plain = initialize(std::make_shared<ThreeBlocks>(), config_of(2, 4), {.world = world});
    plain->load_checkpoint(folder.path() / "hybrid");
    plain->save_checkpoint(folder.path() / "plain");
    if (world->rank() != 0) return;
    EXPECT_TRUE(checkpoint::compare(folder.path() / "hybrid", folder.path() / "plain").empty());
    const auto manifest = checkpoint::read_manifest(checkpoint::resolve(folder.path() / "hybrid"));
    std::set<size_t> files;  // that hold parts of the model: each rank writes some
    for (const auto& [name, tensor] : manifest.tensors) {
      for (const checkpoint::Piece& piece : tensor.pieces) files.insert(piece.file);
    }
    EXPECT_THAT(files, testing::ElementsAre(0, 1, 2, 3));
  });
}

// Whose loss is a mean over rows of a sum over elements, so that a rank can train a part of them by itself.
class Elements : public test::ToyModel {
 public:
  static void specify(layout::ParamSpec& spec) {
    if (spec.name == "rows") spec = {.name = "rows", .shape = {8, 6}, .shards = {{"toy", 0}}};
    if (spec.name == "columns") spec = {.name = "columns", .shape = {6, 64}, .shards = {{"toy", 1}}};
    if (spec.name == "both") spec = {.name = "both", .shape = {4, 8}, .shards = {{"toy", 1}, {"other", 0}}};
    if (spec.name == "uneven") spec = {.name = "uneven", .shape = {7, 3}, .shards = {{"toy", 0}}};
    if (spec.name == "same") spec = {.name = "same", .shape = {5}};
  }

  Elements(const MeshShape& shape, int rank) {
    for (const std::string name : {"rows", "columns", "both", "uneven", "same"}) {
      layout::ParamSpec spec{.name = name};
      specify(spec);
      const layout::Box box = layout::local_box(spec, shape, rank);
      const auto part_of = [&](at::Tensor whole) {
        for (size_t dim = 0; dim < box.extent.size(); ++dim) {
          whole = whole.narrow(static_cast<int64_t>(dim), box.offset[dim], box.extent[dim]);
        }
        return whole.contiguous();
      };
      const at::Tensor index = at::arange(layout::Box::whole(spec.shape).numel(), at::kFloat).view(spec.shape);
      parameters_.push_back(register_parameter(name, part_of(test::Block::values(spec.shape, 3))));
      phases_.push_back(part_of(index * 0.1f));
    }
  }

  at::Tensor loss(const test::ToyInput& input) override {
    const at::Tensor rows = 1 + input.x.mean(1);
    at::Tensor sum = at::zeros({});
    for (size_t param = 0; param < parameters_.size(); ++param) {
      const at::Tensor scaled = parameters_[param].flatten().unsqueeze(0) * rows.unsqueeze(1);
      sum = sum + at::tanh(scaled + phases_[param].flatten()).sum() / rows.numel();
    }
    return sum;
  }

 private:
  std::vector<at::Tensor> parameters_, phases_;
};

using ElementsEngine = std::unique_ptr<ModelEngine<Elements>>;

// A mesh of these axes over the first ranks of the world that it needs; null on the others.
std::shared_ptr<comm::Mesh> mesh_of(const std::shared_ptr<comm::Group>& world, const std::vector<Axis>& axes) {
  const MeshShape shape(axes);
  std::vector<int> ranks(static_cast<size_t>(shape.ranks()));
  std::iota(ranks.begin(), ranks.end(), 0);
  if (world->rank() >= shape.ranks()) return nullptr;
  return std::make_shared<comm::Mesh>(world->subgroup(ranks, "ranks of a mesh"), shape);
}

ElementsEngine elements_on(const std::shared_ptr<comm::Mesh>& mesh, int stage) {
  config::DsConfig config = config_of(stage, mesh->shape().replicas());
  config.gradient_clipping = 0.5;  // below the norm, so that its value reaches the weights
  return initialize(std::make_shared<Elements>(mesh->shape(), mesh->rank()), config,
                    {.mesh = mesh, .specify = Elements::specify});
}

void take_elements_steps(ModelEngine<Elements>& engine, int count) {
  for (int step = 0; step < count; ++step) {
    const test::ToyInput input =
        test::share_of(static_cast<int>(engine.global_steps()), *engine.sharded_model().groups().all);
    engine.backward(engine.call([](Elements& model, const test::ToyInput& in) { return model.loss(in); }, input));
    engine.step();
  }
}

const std::vector<std::vector<Axis>> kMeshes = {
    {{"other", 1}, {"dp_shard", 2}, {"toy", 2}}, {{"other", 1}, {"dp_shard", 1}, {"toy", 1}},
    {{"other", 1}, {"dp_shard", 4}, {"toy", 1}}, {{"other", 1}, {"dp_shard", 1}, {"toy", 4}},
    {{"other", 2}, {"dp_shard", 1}, {"toy", 3}}, {{"dp_replicate", 2}, {"other", 1}, {"dp_shard", 1}, {"toy", 2}},
    {{"toy", 2}, {"dp_shard", 2}, {"other", 2}},
};

class SavedOn : public testing::TestWithParam<size_t> {};

// Each mesh trains the whole model as one rank does, whose norm counts each element once, and loads what any other
// saved.
TEST_P(SavedOn, IsTheWholeModelAndLoadedByEveryOtherMesh) {
  const test::TemporaryFolder folder;
  spawn_ranks(8, [&](const std::shared_ptr<comm::Group>& world) {
    const auto saving = mesh_of(world, kMeshes[GetParam()]);
    double norm = 0;
    if (saving) {
      const ElementsEngine engine = elements_on(saving, /*stage=*/3);
      take_elements_steps(*engine, 3);
      engine->save_checkpoint(folder.path() / "saved", "step3");
      norm = engine->get_global_grad_norm();
    }
    world->barrier("saved");
    if (const auto alone = mesh_of(world, kMeshes[1])) {
      const ElementsEngine whole = elements_on(alone, 0);
      take_elements_steps(*whole, 3);
      EXPECT_NEAR(norm, whole->get_global_grad_norm(), 1e-6 * norm);
      EXPECT_GT(norm, 0.5);
      whole->save_checkpoint(folder.path() / "whole");
      for (const auto& difference : checkpoint::compare(folder.path() / "whole", folder.path() / "saved")) {
        EXPECT_EQ(difference.what, "values") << difference.tensor;
        EXPECT_LT(difference.largest, 2e-6) << difference.kind << " of " << difference.tensor;
      }
      const auto manifest = checkpoint::read_manifest(folder.path() / "saved" / "step3");
      const auto ranks = static_cast<size_t>(MeshShape(kMeshes[GetParam()]).ranks());
      for (const auto& [name, tensor] : manifest.tensors) EXPECT_LE(tensor.pieces.size(), ranks) << name;
    }
    for (size_t other = 0; other < kMeshes.size(); ++other) {
      SCOPED_TRACE(testing::Message() << "loaded on mesh " << other);
      const std::string again = "again" + std::to_string(other);
      if (const auto loading = mesh_of(world, kMeshes[other])) {
        const ElementsEngine engine = elements_on(loading, static_cast<int>(other % 4));
        take_elements_steps(*engine, 1);
        ASSERT_TRUE(engine->load_checkpoint(folder.path() / "saved").has_value());
        engine->save_checkpoint(folder.path() / again, "step3");
      }
      world->barrier(again);
      if (world->rank() != 0) continue;
      EXPECT_TRUE(checkpoint::verify(folder.path() / again / "step3").empty());
      EXPECT_TRUE(checkpoint::compare(folder.path() / "saved", folder.path() / again).empty());
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Meshes, SavedOn, testing::Range<size_t>(0, kMeshes.size()));

TEST(Mesh, AParameterThatIsNotWhatItsSpecificationSaysIsRefused) {
  spawn_ranks(2, [](const std::shared_ptr<comm::Group>& world) {
    const auto mesh = mesh_of(world, {{"dp_shard", 1}, {"toy", 2}, {"other", 1}});
    const auto model = std::make_shared<Elements>(MeshShape({{"dp_shard", 2}, {"toy", 1}, {"other", 1}}), 0);
    try {
      initialize(model, config_of(1, 1), {.mesh = mesh, .specify = Elements::specify});
      FAIL() << "nothing was refused";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("the parameter 'rows' is of shape [8, 6] on rank"));
      EXPECT_THAT(error.what(), testing::HasSubstr("its specification makes it [4, 6]"));
    }
  });
}

}  // namespace
}  // namespace tessera::mesh_test
