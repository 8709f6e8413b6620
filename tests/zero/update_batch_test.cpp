#include "tessera/zero/update_batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/zero/sharded_step.h"
#include "tests/support/spawn_ranks.h"

namespace tessera::zero::update_batch_test {
namespace {

using testing::ElementsAre;

constexpr int kTwoRanks = 2;
constexpr int64_t kLarge = kTwoRanks * UpdateBatch::kMostNumel;

// weight -= lr * gradient; notes what each call was given.
class Descent : public optim::Optimizer {
 public:
  explicit Descent(bool elementwise) : elementwise_(elementwise) {}
  std::vector<std::string> state_names() const override { return {}; }
  bool elementwise() const override { return elementwise_; }
  void update(std::span<optim::ParamShard> shards, const optim::UpdateInput& input) const override {
    EXPECT_EQ(input.peers == nullptr, elementwise_);
    std::string names;
    for (const optim::WholeParam& param : input.params) names += param.name;
    calls.push_back(names + ":");
    for (const optim::ParamShard& shard : shards) {
      const std::string& name = input.params[shard.param].name;  // at stage 0 each rank has all shards of it
      if (!calls.back().ends_with(name)) calls.back() += name;
      shard.weight.sub_(shard.grad * (input.groups[shard.group].lr / input.grad_divisor));
    }
  }

  mutable std::vector<std::string> calls;  // "ab:a": the parameters are a and b, of which b has no shard here

 private:
  bool elementwise_;
};

// A unit of each parameter, of so many elements: all begin as 1, with a gradient of 2 but for those without one.
struct Ones {
  Ones(int stage, const std::vector<int64_t>& numels, std::shared_ptr<comm::Group> world) {
    std::vector<ModuleParams> modules;
    for (const int64_t numel : numels) {
      const std::string name(1, static_cast<char>('a' + modules.size()));
      params.push_back(at::ones({numel}).requires_grad_(true));
      modules.push_back({"of " + name, {{{.name = name}, params.back()}}});
    }
    sharded = ShardedModel::create(modules, {}, policy_of_stage(stage, at::kFloat, kTwoRanks),
                                   comm::Mesh::data_parallel(world), nullptr);
  }

  void step(const Descent& optimizer, const std::vector<size_t>& used) {
    const std::vector<optim::ParamGroup> groups = {{.lr = 0.25}};
    sharded->begin_backward();
    for (const size_t param : used) {
      sharded->before_forward(param, {});
      const at::Tensor loss = (params[param] * 2).sum();
      sharded->after_forward(param, {loss});
      loss.backward();
    }
    sharded->finish_backward();
    sharded_step(*sharded, optimizer, groups, {});
  }

  // Of each parameter, where all its elements are the same.
  std::vector<double> values() {
    sharded->hold_all();
    std::vector<double> all;
    for (const at::Tensor& param : params) {
      all.push_back(param[0].item<double>());
      EXPECT_TRUE(param.eq(all.back()).all().item<bool>());
    }
    sharded->drop_all();
    return all;
  }

  std::vector<at::Tensor> params;
  std::shared_ptr<ShardedModel> sharded;
};

TEST(UpdateBatch, SmallUnitsShareACallWhereElementsAreIndependent) {
  test::spawn_ranks(kTwoRanks, [](const auto& world) {
    for (int stage = 0; stage <= 3; ++stage) {
      Ones together(stage, {64, 100, kLarge, 64, 64}, world), apart(stage, {64, 100, kLarge, 64, 64}, world);
      const Descent elementwise(true), asks_peers(false);
      together.step(elementwise, {0, 2, 3, 4});
      apart.step(asks_peers, {0, 2, 3, 4});
      EXPECT_THAT(elementwise.calls, ElementsAre("ab:a", "c:c", "de:de")) << stage;
      EXPECT_THAT(asks_peers.calls, ElementsAre("a:a", "b:", "c:c", "d:d", "e:e")) << stage;
      EXPECT_THAT(together.values(), ElementsAre(0.5, 1, 0.5, 0.5, 0.5));
      EXPECT_THAT(apart.values(), ElementsAre(0.5, 1, 0.5, 0.5, 0.5));
      for (size_t unit = 0; unit < 5; ++unit) {
        EXPECT_THAT(together.sharded->units()[unit]->steps(), ElementsAre(unit == 1 ? 0 : 1));
      }
    }
  });
}

TEST(UpdateBatch, IsUpdatedBeforeItGrowsLarge) {
  test::spawn_ranks(kTwoRanks, [](const auto& world) {
    Ones model(/*stage=*/2, std::vector<int64_t>(5, kLarge / 2), world);  // this rank has a quarter of kLarge of each
    const Descent optimizer(true);
    model.step(optimizer, {0, 1, 2, 3, 4});
    EXPECT_THAT(optimizer.calls, ElementsAre("ab:ab", "cd:cd", "e:e"));
    EXPECT_THAT(model.values(), ElementsAre(0.5, 0.5, 0.5, 0.5, 0.5));
  });
}

}  // namespace
}  // namespace tessera::zero::update_batch_test
