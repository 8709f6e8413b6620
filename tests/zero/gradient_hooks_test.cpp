#include "tessera/zero/gradient_hooks.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/zero/unreadable.h"

namespace tessera::zero::gradient_hooks_test {
namespace {

struct Seen {
  size_t unit, param;
  at::Tensor gradient;
};

TEST(GradientHooks, HandOverEachGradientAsItArrivesAndHideIt) {
  for (const bool shows_undefined : {false, true}) {
    const at::Tensor w = at::ones({3}).requires_grad_(true);
    std::vector<Seen> seen;
    GradientHooks* own = nullptr;
    GradientHooks hooks(
        [&](size_t unit, size_t param, const at::Tensor& parameter) {
          seen.push_back({unit, param, parameter.grad().clone()});
          own->hide(parameter);
        },
        shows_undefined);
    own = &hooks;
    hooks.watch(w, "w", 4, 2);
    EXPECT_TRUE(GradientHooks::is_watched(w));
    for (const double slope : {2.0, 5.0}) (w * slope).sum().backward();
    ASSERT_EQ(seen.size(), 2u);
    EXPECT_EQ(seen[0].unit, 4u);
    EXPECT_EQ(seen[0].param, 2u);
    EXPECT_TRUE(at::equal(seen[0].gradient, at::full({3}, 2.0)));
    EXPECT_TRUE(at::equal(seen[1].gradient, at::full({3}, 5.0))) << "the one that was taken is not added again";
    EXPECT_EQ(w.grad().defined(), !shows_undefined);
    if (!shows_undefined) {
      EXPECT_TRUE(is_unreadable(w.grad()));
      try {
        w.grad().sum();
        FAIL() << "was read";
      } catch (const c10::Error& error) {
        EXPECT_THAT(error.what(), testing::HasSubstr("the gradient of 'w' was taken by the engine"));
      }
    }
  }
}

TEST(GradientHooks, LeaveTheParameterAsItWasWhenTheyGo) {
  const at::Tensor w = at::ones({3}).requires_grad_(true);
  int arrived = 0;
  {
    GradientHooks hooks([&](size_t, size_t, const at::Tensor&) { ++arrived; }, /*shows_undefined=*/false);
    hooks.watch(w, "w", 0, 0);
  }
  EXPECT_FALSE(GradientHooks::is_watched(w));
  (w * 3).sum().backward();
  EXPECT_EQ(arrived, 0);
  EXPECT_TRUE(at::equal(w.grad(), at::full({3}, 3.0)));
}

}  // namespace
}  // namespace tessera::zero::gradient_hooks_test
