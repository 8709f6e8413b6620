#include "tessera/zero/module_calls.h"

#include <gtest/gtest.h>

#include "tests/zero/one_rank_units.h"

namespace tessera::zero::module_calls_test {
namespace {

using test::OneRankUnits;

struct Modules {
  explicit Modules(size_t count, bool trainable = true)
      : of(count, trainable),
        residency(of.units, std::vector<bool>(count, false), {}, /*shards=*/1),
        calls(std::make_shared<ModuleCalls>(of.units, residency, units_of(count), /*shards_parameters=*/true)) {}

  static std::vector<std::vector<size_t>> units_of(size_t count) {
    std::vector<std::vector<size_t>> each;
    for (size_t unit = 0; unit < count; ++unit) each.push_back({unit});
    return each;
  }

  at::Tensor run(size_t module, const at::Tensor& x) {
    calls->before_forward(module, {x});
    const at::Tensor y = x * of.params[module];
    calls->after_forward(module, {y});
    return y;
  }

  OneRankUnits of;
  Residency residency;
  std::shared_ptr<ModuleCalls> calls;
};

TEST(ModuleCalls, HoldAModulesUnitsWhileItsForwardRuns) {
  Modules modules(2);
  EXPECT_FALSE(modules.calls->running_module());
  modules.calls->before_forward(0, {});
  EXPECT_EQ(modules.of.states(), "W-");
  modules.calls->before_forward(1, {});
  EXPECT_EQ(modules.of.states(), "WW");
  EXPECT_EQ(modules.calls->running_module(), 1u);
  modules.calls->after_forward(1, {});
  EXPECT_EQ(modules.of.states(), "W-");
  modules.calls->after_forward(0, {});
  EXPECT_EQ(modules.of.states(), "--");
}

// Backward comes to the second module first, and reads its weights, 2; then the first's, 1.
TEST(ModuleCalls, HoldThemAgainFromTheirBackwardToTheirLastGradient) {
  Modules modules(2);
  const at::Tensor x = at::full({test::kUnitNumel}, 3.0).requires_grad_(true);
  const at::Tensor middle = modules.run(0, x);
  std::string when_the_middle_arrived;
  const at::Tensor y = modules.run(1, middle);
  middle.register_hook([&](const at::Tensor&) { when_the_middle_arrived = modules.of.states(); });
  EXPECT_EQ(modules.of.states(), "--");
  y.sum().backward();
  EXPECT_TRUE(when_the_middle_arrived == "-W" || when_the_middle_arrived == "WW") << when_the_middle_arrived;
  EXPECT_EQ(modules.of.states(), "WW");
  EXPECT_TRUE(at::equal(x.grad(), at::full({test::kUnitNumel}, 2.0)));
  modules.calls->gradients_complete(1);
  EXPECT_EQ(modules.of.states(), "W-");
  modules.calls->finish_backward();
  EXPECT_EQ(modules.of.states(), "--");
}

TEST(ModuleCalls, DropFrozenUnitsOnceTheGradientsOfTheInputsAreThere) {
  Modules modules(1, /*trainable=*/false);
  const at::Tensor x = at::full({test::kUnitNumel}, 3.0).requires_grad_(true);
  const at::Tensor doubled = x * 2;
  std::string when_x_arrived;
  const at::Tensor y = modules.run(0, doubled);
  x.register_hook([&](const at::Tensor&) { when_x_arrived = modules.of.states(); });
  y.sum().backward();
  EXPECT_EQ(when_x_arrived, "-");
  EXPECT_TRUE(at::equal(x.grad(), at::full({test::kUnitNumel}, 2.0)));
}

TEST(ModuleCalls, AlsoHoldWhatAModuleIsFoundToRead) {
  Modules modules(2);
  modules.calls->before_forward(0, {});
  modules.calls->also_uses(0, 1);
  EXPECT_EQ(modules.of.states(), "WW");
  modules.calls->after_forward(0, {});
  EXPECT_EQ(modules.of.states(), "--");
  modules.calls->before_forward(0, {});
  EXPECT_EQ(modules.of.states(), "WW") << "from now on";
  modules.calls->abandon();
  EXPECT_EQ(modules.of.states(), "--");
  EXPECT_FALSE(modules.calls->running_module());
}

}  // namespace
}  // namespace tessera::zero::module_calls_test
