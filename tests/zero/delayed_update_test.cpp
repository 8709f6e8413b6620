#include "tessera/zero/delayed_update.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/spawn_ranks.h"
#include "tests/zero/swap_files.h"
#include "tests/zero/three_params.h"

namespace tessera::zero::delayed_update_test {
namespace {

using test::kThreeRanks;
using test::numbers;
using test::ThreeParams;

// weight -= lr * gradient.
class Descent : public optim::Optimizer {
 public:
  explicit Descent(bool elementwise = true) : elementwise_(elementwise) {}
  std::vector<std::string> state_names() const override { return {}; }
  bool elementwise() const override { return elementwise_; }
  void update(std::span<optim::ParamShard> shards, const optim::UpdateInput& input) const override {
    for (optim::ParamShard& shard : shards) {
      shard.weight.sub_(shard.grad * (input.groups[shard.group].lr / input.grad_divisor));
    }
  }

 private:
  bool elementwise_;
};

// The mean gradient is twice numbers(param, 1), which forward sees in bf16.
at::Tensor after_one_step(size_t param) {
  return (numbers(param) - 0.5 * test::mean_gradient(param, at::kBFloat16)).to(at::kBFloat16);
}

TEST(DelayedUpdate, IsSeenByForwardOnlyOnceItIsFinished) {
  test::spawn_ranks(kThreeRanks, [](const auto& world) {
    for (int stage = 0; stage <= 3; ++stage) {
      ThreeParams model(test::mixed_policy(stage), {}, world);
      const Descent optimizer;
      const std::vector<optim::ParamGroup> groups = {{.lr = 0.5}};
      DelayedUpdate update(*model.sharded, optimizer);
      model.run_backward();
      EXPECT_GT(update.step(groups, {.step = 1}).grad_norm, 0);
      EXPECT_TRUE(at::equal(model.whole(1), numbers(1).to(at::kBFloat16))) << "before";
      update.finish();
      EXPECT_TRUE(at::allclose(model.whole(1), after_one_step(1), /*rtol=*/0, /*atol=*/0.02)) << "after";
      EXPECT_FALSE(at::equal(model.whole(1), numbers(1).to(at::kBFloat16)));
    }
  });
}

TEST(DelayedUpdate, RefusesWhatItCannotDo) {
  const test::TemporaryFolder folder;
  const auto refusal = [](const Policy& policy, const Descent& optimizer) -> std::string {
    ThreeParams model(policy, {}, comm::Group::alone());
    try {
      DelayedUpdate update(*model.sharded, optimizer);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(refusal(policy_of_stage(1, at::kFloat, 1), Descent()), testing::HasSubstr("needs master weights"));
  EXPECT_THAT(refusal(test::mixed_policy(1), Descent(false)), testing::HasSubstr("each element independently"));
  Policy on_disk = test::mixed_policy(2);
  on_disk.offload.optimizer = test::swap_file(folder);
  EXPECT_THAT(refusal(on_disk, Descent()), testing::HasSubstr("only on state in memory"));
}

}  // namespace
}  // namespace tessera::zero::delayed_update_test
