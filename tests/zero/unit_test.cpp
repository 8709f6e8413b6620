#include "tessera/zero/unit.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/zero/unreadable.h"
#include "tests/support/spawn_ranks.h"

namespace tessera::zero::unit_test {
namespace {

DataGroups groups_of(const std::shared_ptr<comm::Group>& world) {
  return DataGroups::of(*comm::Mesh::data_parallel(world), /*shards_anything=*/true);
}

std::vector<NamedParam> one_param(const at::Tensor& values) {
  return {{{.name = "w"}, values.clone().requires_grad_(true)}};
}

// See Note [Views survive release] in unit.h.
TEST(Unit, ViewsThatAutogradSavedAreValidAgainAfterAGather) {
  const auto world = comm::Group::alone();
  const at::Tensor values = at::arange(12, at::kFloat).view({3, 4});
  Unit unit("u", one_param(values), {.states = 2}, policy_of_stage(3, at::kFloat, world->size()), groups_of(world),
            nullptr);
  const at::Tensor& w = unit.params()[0].tensor;
  const at::Tensor view = w.detach().t();
  unit.release();
  EXPECT_TRUE(is_unreadable(w));
  EXPECT_EQ(w.sizes(), values.sizes());
  EXPECT_EQ(view.storage().nbytes(), 0u);
  unit.start_gather();
  unit.finish_gather();
  EXPECT_TRUE(at::equal(view, values.t()));
  EXPECT_TRUE(at::equal(w.detach(), values));
}

TEST(Unit, ReleasedParametersRaiseAnErrorInsteadOfACrash) {
  const auto world = comm::Group::alone();
  Unit unit("u", one_param(at::ones({3, 4})), {.states = 2}, policy_of_stage(3, at::kFloat, world->size()),
            groups_of(world), nullptr);
  unit.release();
  EXPECT_THROW(at::matmul(at::ones({2, 3}), unit.params()[0].tensor), std::exception);
}

// `zero.GatheredParameters` of DeepSpeed's programs, and many of their checks, look for the size 0.
TEST(Unit, AReleasedParameterHasNoElementsWhereProgramsOfDeepSpeedExpectThat) {
  const auto world = comm::Group::alone();
  Policy policy = policy_of_stage(3, at::kFloat, world->size());
  policy.placeholders_as_deepspeed = true;
  Unit unit("u", one_param(at::ones({3, 4})), {.states = 2}, policy, groups_of(world), nullptr);
  unit.release();
  EXPECT_EQ(unit.params()[0].tensor.numel(), 0);
  EXPECT_THROW(unit.params()[0].tensor.mean(), c10::Error);  // of nothing it would be NaN
}

// At stage 3; the weights change in the optimizer's place of them, and are there once they are published.
TEST(Unit, OfWhichAllPersistsIsWholeAtAllTimes) {
  constexpr int kRanks = 2;
  test::spawn_ranks(kRanks, [](const auto& world) {
    for (const bool all : {true, false}) {
      std::vector<NamedParam> params = {{{.name = "w"}, at::ones({3, 4}).requires_grad_(true)},
                                        {{.name = "v"}, at::ones({100}).requires_grad_(true)}};
      params[0].persists = true;
      params[1].persists = all;
      Unit unit("u", params, {.states = 2}, policy_of_stage(3, at::kBFloat16, kRanks), groups_of(world), nullptr);
      EXPECT_EQ(unit.shards_parameters(), !all);
      unit.release();
      EXPECT_EQ(unit.state(), all ? UnitState::kGathered : UnitState::kSharded);
      EXPECT_EQ(is_unreadable(unit.params()[1].tensor), !all);
      EXPECT_EQ(unit.owned().numel(), unit.layout().shard_numel());
      unit.master().tensor().fill_(2);
      unit.refresh_compute();
      const int64_t sent = world->bytes_sent();
      unit.start_publish();
      unit.finish_persistent();
      EXPECT_GT(world->bytes_sent(), sent);
      EXPECT_TRUE(unit.params()[0].tensor.eq(2).all().template item<bool>());
      if (all) {
        EXPECT_TRUE(unit.params()[1].tensor.eq(2).all().template item<bool>());
      }
    }
  });
}

TEST(Unit, ReleasingTwiceIsOurBug) {
  const auto world = comm::Group::alone();
  Unit unit("u", one_param(at::ones({3, 4})), {.states = 2}, policy_of_stage(3, at::kFloat, world->size()),
            groups_of(world), nullptr);
  unit.release();
  EXPECT_THROW(unit.release(), Error);
}

TEST(Unit, MasterWeightsKeepFullPrecisionBesideTheComputeWeights) {
  const auto world = comm::Group::alone();
  const at::Tensor values = at::full({40}, 1.0f + 1.0f / 1024);  // not a bf16
  for (const int stage : {0, 1, 2, 3}) {
    Unit unit("u", one_param(values), {.states = 2}, policy_of_stage(stage, at::kBFloat16, world->size()),
              groups_of(world), nullptr);
    EXPECT_EQ(unit.params()[0].tensor.scalar_type(), at::kBFloat16);
    EXPECT_TRUE(at::equal(unit.master().tensor().narrow(0, 0, 40), values));
    EXPECT_EQ(unit.params()[0].tensor[0].item<float>(), 1.0f);  // 1 + 2^-10 rounds to 1 in bf16's 8 bits
  }
}

TEST(Unit, PadsAreZero) {
  const auto world = comm::Group::alone();
  Unit unit("u", one_param(at::ones({3})), {.states = 2}, policy_of_stage(1, at::kFloat, world->size()),
            groups_of(world), nullptr);
  EXPECT_EQ(unit.master().numel(), 32);
  EXPECT_EQ(unit.master().tensor().sum().item<float>(), 3.0f);
}

}  // namespace
}  // namespace tessera::zero::unit_test
