#include "tessera/zero/rank_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/spawn_ranks.h"
#include "tests/zero/three_params.h"

namespace tessera::zero::rank_state_test {
namespace {

using testing::ElementsAre;

// Of an optimizer that compresses, one state an element.
class Compressing : public optim::Optimizer {
 public:
  explicit Compressing(bool apart) : apart_(apart) {}
  std::vector<std::string> state_names() const override { return {"moment"}; }
  void update(std::span<optim::ParamShard>, const optim::UpdateInput&) const override {}
  bool averages_by_signs() const override { return true; }
  bool ranks_differ(std::span<const double>) const override { return apart_; }

 private:
  bool apart_;
};

std::vector<std::string> names_of(const std::map<std::string, at::Tensor>& tensors) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) names.push_back(name);
  return names;
}

TEST(RankState, IsWhatCompressionLostAndMoreWhileTheRanksTakeStepsApart) {
  test::spawn_ranks(test::kThreeRanks, [](const auto& world) {
    Policy policy = policy_of_stage(0, at::kFloat, test::kThreeRanks);
    test::ThreeParams model(policy, {.states = 1, .sign_errors = true}, world);
    EXPECT_THAT(names_of(rank_state(*model.sharded, Compressing(false))),
                ElementsAre("server_error/model", "worker_error/model"));
    EXPECT_THAT(names_of(rank_state(*model.sharded, Compressing(true))),
                ElementsAre("moment/model", "server_error/model", "weight/model", "worker_error/model"));
    test::ThreeParams plain(policy, {.states = 1}, world);
    EXPECT_TRUE(rank_state(*plain.sharded, Compressing(true)).empty());
  });
}

TEST(RankState, IsPutBackAndErrorsThatWereNotSavedBeginAtZero) {
  test::spawn_ranks(test::kThreeRanks, [](const auto& world) {
    const Compressing optimizer(true);
    test::ThreeParams model(policy_of_stage(0, at::kFloat, test::kThreeRanks), {.states = 1, .sign_errors = true},
                            world);
    std::map<std::string, at::Tensor> saved;
    for (const auto& [name, tensor] : rank_state(*model.sharded, optimizer)) {
      tensor.fill_(world->rank() + 1);
      saved[name] = tensor.clone();
    }
    for (const auto& [name, tensor] : rank_state(*model.sharded, optimizer)) tensor.fill_(9);
    saved.erase("server_error/model");
    restore_rank_state(*model.sharded, optimizer, saved);
    for (const auto& [name, tensor] : rank_state(*model.sharded, optimizer)) {
      const double want = name == "server_error/model" ? 0 : world->rank() + 1;
      EXPECT_TRUE(at::equal(tensor, at::full_like(tensor, want))) << name;
    }
  });
}

}  // namespace
}  // namespace tessera::zero::rank_state_test
