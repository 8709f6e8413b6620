#include "tessera/zero/unit_builder.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::zero::unit_builder_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

NamedParam param(const std::string& name, const at::Tensor& tensor) { return {{.name = name}, tensor}; }
at::Tensor weights(int64_t numel, bool trainable = true) { return at::ones({numel}).requires_grad_(trainable); }

BuiltUnits built(std::vector<ModuleParams> modules, const Policy& policy) {
  const auto mesh = comm::Mesh::data_parallel(comm::Group::alone());
  UnitGroups groups(mesh, /*shards_anything=*/true, "gather");
  BuiltUnits units;
  build_units({std::move(modules), {}, policy, *mesh, groups, nullptr}, units, [](size_t) {});
  return units;
}

std::vector<std::string> names_of(const BuiltUnits& built) {
  std::vector<std::string> names;
  for (const auto& unit : built.units) names.push_back(unit->name());
  return names;
}

TEST(UnitBuilder, PutsFrozenParametersIntoUnitsOfTheirOwn) {
  const BuiltUnits units = built({{"a", {param("a.w", weights(3)), param("a.frozen", weights(4, false))}},
                                  {"b", {param("b.frozen", weights(5, false))}},
                                  {"empty", {}}},
                                 policy_of_stage(3, at::kFloat, 1));
  EXPECT_THAT(names_of(units), ElementsAre("a", "a (frozen)", "b (frozen)"));
  EXPECT_THAT(units.of_module, ElementsAre(ElementsAre(0, 1), ElementsAre(2), ElementsAre()));
  for (const auto& unit : units.units) EXPECT_EQ(unit->state(), UnitState::kSharded);
}

TEST(UnitBuilder, PutsBytesIntoUnitsOfTheirOwn) {
  for (const int stage : {0, 3}) {
    const at::Tensor bytes = at::arange(100, at::kByte);
    const BuiltUnits units =
        built({{"a", {param("a.bytes", bytes), param("a.w", weights(3)), param("a.f", weights(4, false))}}},
              policy_of_stage(stage, at::kBFloat16, 1));
    EXPECT_THAT(names_of(units), ElementsAre("a", "a (frozen)", "a (bytes)"));
    Unit& unit = *units.units[2];
    EXPECT_FALSE(unit.trainable());
    EXPECT_EQ(unit.params()[0].spec.storage, layout::Storage::kBytes);
    EXPECT_EQ(unit.model_state_bytes().memory, 128);  // a multiple of 32
    if (stage == 3) {
      unit.start_gather();
      unit.finish_gather();
    }
    EXPECT_TRUE(at::equal(unit.params()[0].tensor, at::arange(100, at::kByte)));
  }
}

// A weight that its module stores as another dtype, in which some of its bytes are not a number.
NamedParam stored_as(at::ScalarType dtype, const at::Tensor& bytes) {
  return {{.name = "a.bytes", .storage = layout::Storage::kBytes}, bytes.clone().view(dtype)};
}

TEST(UnitBuilder, KeepsBytesUnderTheDtypeByWhichTheirModuleKnowsThem) {
  const at::Tensor bytes = at::arange(256, at::kByte).view({4, 64});
  for (const at::ScalarType dtype : {at::kChar, at::kBFloat16, at::kLong}) {
    for (const int stage : {0, 3}) {
      NamedParam param = stored_as(dtype, bytes);
      const at::Tensor tensor = param.tensor;
      const std::vector<int64_t> shape = tensor.sizes().vec();
      const BuiltUnits units = built({{"a", {std::move(param)}}}, policy_of_stage(stage, at::kFloat, 1));
      Unit& unit = *units.units.front();
      EXPECT_EQ(unit.name(), "a (bytes)");
      EXPECT_THAT(unit.layout().params()[0].shape, ElementsAre(4, 64));
      EXPECT_EQ(unit.model_state_bytes().memory, 256);
      EXPECT_EQ(tensor.scalar_type(), dtype);
      EXPECT_EQ(tensor.sizes().vec(), shape);
      if (stage == 3) {
        unit.start_gather();
        unit.finish_gather();
      }
      EXPECT_TRUE(at::equal(tensor.view(at::kByte), bytes)) << toString(dtype) << " at stage " << stage;
    }
  }
}

TEST(UnitBuilder, GivesASharedParameterToItsFirstModuleAndKnowsItsOtherName) {
  const at::Tensor tied = weights(6);
  const BuiltUnits units = built({{"embedding", {param("embedding.w", tied)}}, {"head", {param("head.w", tied)}}},
                                 policy_of_stage(3, at::kFloat, 1));
  EXPECT_THAT(names_of(units), ElementsAre("embedding"));
  EXPECT_THAT(units.of_module, ElementsAre(ElementsAre(0), ElementsAre(0)));
  ASSERT_EQ(units.aliases.size(), 1u);
  EXPECT_EQ(units.aliases[0].name, "head.w");
  EXPECT_EQ(units.aliases[0].canonical, "embedding.w");
}

TEST(UnitBuilder, LetsSmallUnitsPersistAsFarAsTheModelsThresholdGoes) {
  Policy policy = policy_of_stage(3, at::kFloat, 1);
  policy.residency = {.param_persistence_threshold = 10, .model_persistence_threshold = 15};
  const BuiltUnits units = built({{"a", {param("a", weights(10))}},
                                  {"b", {param("b", weights(11))}},
                                  {"c", {param("c", weights(6))}},
                                  {"d", {param("d", weights(5))}}},
                                 policy);
  EXPECT_THAT(units.persistent, ElementsAre(true, false, false, true));
}

TEST(UnitBuilder, RefusesAParameterThatIsNotWhatItsSpecificationSays) {
  NamedParam wrong = param("w", weights(4));
  wrong.spec.shape = {5};
  try {
    built({{"a", {wrong}}}, policy_of_stage(1, at::kFloat, 1));
    FAIL() << "was built";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("'w' is of shape [4] on rank 0, but its specification makes it [5]"));
  }
}

}  // namespace
}  // namespace tessera::zero::unit_builder_test
