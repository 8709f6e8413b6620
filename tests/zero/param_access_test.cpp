#include "tessera/zero/param_access.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/spawn_ranks.h"
#include "tests/zero/swap_files.h"
#include "tests/zero/three_params.h"

namespace tessera::zero::param_access_test {
namespace {

using test::kPieces;
using test::kShapes;
using test::kThreeRanks;
using test::numbers;
using test::ThreeParams;
using Kind = StateOfParam::Kind;

constexpr StateOfParam kWeight{.kind = Kind::kWeight};
constexpr StateOfParam kGrad{.kind = Kind::kGrad};
constexpr StateOfParam kSecondState{.kind = Kind::kOptimizerState, .state = 1};

// `body(model, stage)` on three ranks at every stage; at 2 and 3 on disk as well.
void at_every_stage(const std::function<void(ThreeParams&, int)>& body) {
  const test::TemporaryFolder folder;
  test::spawn_ranks(kThreeRanks, [&](const auto& world) {
    for (const bool on_disk : {false, true}) {
      for (int stage = on_disk ? 2 : 0; stage <= 3; ++stage) {
        Policy policy = test::mixed_policy(stage);
        if (on_disk) {
          policy.offload.optimizer = test::swap_file(folder);
        }
        SCOPED_TRACE("stage " + std::to_string(stage) + (on_disk ? " on disk" : ""));
        ThreeParams model(policy, {.states = 2}, world);
        body(model, stage);
      }
    }
  });
}

void expect_equal(const at::Tensor& got, const at::Tensor& want, const std::string& what) {
  EXPECT_EQ(got.sizes(), want.sizes()) << what;
  EXPECT_EQ(got.scalar_type(), want.scalar_type()) << what;
  EXPECT_TRUE(at::equal(got, want)) << what << "\n" << got << "\ninstead of\n" << want;
}

at::Tensor piece(const at::Tensor& whole, size_t param, int rank, int stage) {
  const at::Tensor flat = whole.view({-1});
  if (stage == 0) return flat;
  const layout::Range range = kPieces[param][static_cast<size_t>(rank)];
  return flat.narrow(0, range.begin, range.numel());
}

TEST(ParamAccess, WeightsAreTheInitialOnesInFullPrecision) {
  at_every_stage([](ThreeParams& model, int stage) {
    for (size_t param = 0; param < kShapes.size(); ++param) {
      expect_equal(full_value(*model.sharded, {0, param}, kWeight), numbers(param), "full");
      expect_equal(local_value(*model.sharded, {0, param}, kWeight), piece(numbers(param), param, model.rank, stage),
                   "local");
    }
  });
}

TEST(ParamAccess, GradientsAreTheMeanOverTheRanksBetweenBackwardAndStep) {
  at_every_stage([](ThreeParams& model, int stage) {
    model.run_backward();
    for (size_t param = 0; param < kShapes.size(); ++param) {
      // (1 + 2 + 3) / 3 times the factors, which backward sees in bf16; each rank's gradient is one, too.
      const at::Tensor mean = test::mean_gradient(param, at::kBFloat16);
      const at::Tensor full = full_value(*model.sharded, {0, param}, kGrad);
      EXPECT_TRUE(at::allclose(full, mean, /*rtol=*/1e-6)) << full << "\ninstead of\n" << mean;
      expect_equal(local_value(*model.sharded, {0, param}, kGrad), piece(full, param, model.rank, stage), "local");
    }
  });
}

TEST(ParamAccess, AGradientCanBeReplaced) {
  at_every_stage([](ThreeParams& model, int) {
    model.run_backward();
    set_full_value(*model.sharded, {0, 1}, kGrad, numbers(1, 5));
    expect_equal(full_value(*model.sharded, {0, 1}, kGrad), numbers(1, 5), "b");
    EXPECT_FALSE(at::equal(full_value(*model.sharded, {0, 2}, kGrad), numbers(2, 5)));
  });
}

TEST(ParamAccess, OptimizerStatesBeginAsZerosAndAreKeptOneByOne) {
  at_every_stage([](ThreeParams& model, int stage) {
    for (size_t param = 0; param < kShapes.size(); ++param) {
      expect_equal(full_value(*model.sharded, {0, param}, kSecondState), at::zeros(kShapes[param]), "before");
      set_full_value(*model.sharded, {0, param}, kSecondState, numbers(param, 2));
    }
    for (size_t param = 0; param < kShapes.size(); ++param) {
      expect_equal(full_value(*model.sharded, {0, param}, kSecondState), numbers(param, 2), "after");
      expect_equal(local_value(*model.sharded, {0, param}, kSecondState),
                   piece(numbers(param, 2), param, model.rank, stage), "local");
      expect_equal(full_value(*model.sharded, {0, param}, {.kind = Kind::kOptimizerState, .state = 0}),
                   at::zeros(kShapes[param]), "the other state");
      expect_equal(full_value(*model.sharded, {0, param}, kWeight), numbers(param), "the weight");
    }
  });
}

TEST(ParamAccess, ANewWeightIsKeptInFullAndSeenRoundedByTheModel) {
  at_every_stage([](ThreeParams& model, int) {
    model.sharded->hold_all();  // whole already: it must not stay what it was
    model.sharded->drop_all();
    set_full_value(*model.sharded, {0, 1}, kWeight, numbers(1, 3));
    expect_equal(full_value(*model.sharded, {0, 1}, kWeight), numbers(1, 3), "kept");
    expect_equal(model.whole(1), numbers(1, 3).to(at::kBFloat16), "seen");
    expect_equal(model.whole(0), numbers(0).to(at::kBFloat16), "its neighbour before");
    expect_equal(model.whole(2), numbers(2).to(at::kBFloat16), "its neighbour behind");
  });
}

TEST(ParamAccess, EachRankCanWriteItsOwnPart) {
  at_every_stage([](ThreeParams& model, int stage) {
    for (size_t param = 0; param < kShapes.size(); ++param) {
      set_local_value(*model.sharded, {0, param}, kWeight, piece(numbers(param, 4), param, model.rank, stage));
    }
    for (size_t param = 0; param < kShapes.size(); ++param) {
      expect_equal(full_value(*model.sharded, {0, param}, kWeight), numbers(param, 4), "kept");
      expect_equal(model.whole(param), numbers(param, 4).to(at::kBFloat16), "seen");
    }
  });
}

TEST(ParamAccess, ValuesAreCopies) {
  at_every_stage([](ThreeParams& model, int) {
    local_value(*model.sharded, {0, 0}, kWeight).zero_();
    expect_equal(full_value(*model.sharded, {0, 0}, kWeight), numbers(0), "a");
  });
}

TEST(ParamAccess, AssemblesWhatTheRanksHaveInAnyDtype) {
  at_every_stage([](ThreeParams& model, int stage) {
    const at::Tensor whole = at::arange(100, at::kLong);
    expect_equal(assembled(*model.sharded, {0, 1}, piece(whole, 1, model.rank, stage).clone()), whole, "b");
  });
}

}  // namespace
}  // namespace tessera::zero::param_access_test
