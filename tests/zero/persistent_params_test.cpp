#include "tessera/zero/persistent_params.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "tests/support/spawn_ranks.h"

namespace tessera::zero::persistent_params_test {
namespace {

// The second lies in two shards of three; the third is large.
layout::FlatLayout layout_over(int ranks) {
  return {{{"bias", {7}}, {"scale", {5, 20}}, {"matrix", {64, 3}}, {"last", {1}}}, ranks};
}

// What a gather brings: every element has a value of its own, and what lies between parameters is zero.
at::Tensor full_of(const layout::FlatLayout& layout, double first, at::ScalarType dtype) {
  at::Tensor full = at::zeros({layout.numel()}, dtype);
  for (const layout::FlatParam& param : layout.params()) {
    full.narrow(0, param.offset, param.numel).copy_(at::arange(param.numel).to(at::kDouble).add(first + param.offset));
  }
  return full;
}

at::Tensor value_in(const at::Tensor& full, const layout::FlatParam& param) {
  return full.narrow(0, param.offset, param.numel).view(param.shape);
}

TEST(PersistentParams, FollowWhatTheRanksOwn) {
  for (const int ranks : {1, 2, 3}) {
    test::spawn_ranks(ranks, [ranks](const auto& world) {
      const layout::FlatLayout layout = layout_over(ranks);
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
        at::Tensor full = full_of(layout, 0, dtype);
        PersistentParams persistent(layout, {0, 1, 3}, *world, full);
        for (const double first : {0.0, 0.25, -30.0}) {
          full = full_of(layout, first, dtype);
          if (first != 0) {
            const layout::Range own = layout.shard(world->rank());
            persistent.refresh(full.narrow(0, own.begin, own.numel()), "u");
          }
          for (const size_t param : {0, 1, 3}) {
            EXPECT_TRUE(at::equal(persistent.whole(param), value_in(full, layout.params()[param]))) << param << first;
          }
        }
        EXPECT_FALSE(persistent.whole(2).defined());
      }
    });
  }
}

TEST(PersistentParams, TakeWhatIsGathered) {
  const layout::FlatLayout layout = layout_over(2);
  test::spawn_ranks(2, [&](const auto& world) {
    PersistentParams persistent(layout, {0, 3}, *world, full_of(layout, 1, at::kFloat));
    const at::Tensor full = full_of(layout, 5, at::kFloat);
    persistent.take(full);
    for (const size_t param : {0, 3})
      EXPECT_TRUE(at::equal(persistent.whole(param), value_in(full, layout.params()[param])));
  });
}

}  // namespace
}  // namespace tessera::zero::persistent_params_test
