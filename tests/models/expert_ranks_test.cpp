#include "tessera/models/expert_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/layout/mesh_shape.h"
#include "tessera/models/census.h"
#include "tessera/models/llama.h"
#include "tessera/models/stages.h"

namespace tessera::models::expert_ranks_test {
namespace {

// Of each layer 4 experts of 3 matrices of 8 x 6, a router of 4 x 8, attention of 4 matrices of 8 x 8 and two norms.
LlamaForCausalLM mixtral() {
  return LlamaForCausalLM(read_llama_config({.values = {{"model_type", "mixtral"},
                                                        {"vocab_size", 10},
                                                        {"hidden_size", 8},
                                                        {"intermediate_size", 6},
                                                        {"num_hidden_layers", 2},
                                                        {"num_attention_heads", 2},
                                                        {"num_key_value_heads", 2},
                                                        {"num_local_experts", 4}},
                                             .path = "config.json"}));
}
constexpr int64_t kExpert = 3 * 8 * 6, kRest = 4 * 8 + 4 * 8 * 8 + 2 * 8;

TEST(ExpertRanks, EachHasItsExpertsAloneAndSaysWhoHasThem) {
  LlamaForCausalLM network = mixtral();
  const auto tell = keep_experts_of(network, nn::ExpertAxis::of_size(2));  // of the first rank
  std::vector<std::string> experts;
  for (const auto& item : network.named_parameters()) {
    layout::ParamSpec spec{.name = item.key()};
    tell(spec);
    if (spec.holders.empty()) continue;
    experts.push_back(spec.name);
    EXPECT_EQ(spec.holders.front().axis, layout::kExpertAxis);
    EXPECT_EQ(spec.holders.front().coordinates, std::vector<int>{0});
  }
  EXPECT_EQ(experts.size(), 2u * 2 * 3);
  EXPECT_THAT(experts, testing::Contains("model.layers.1.block_sparse_moe.experts.1.w3.weight"));
  EXPECT_THAT(experts, testing::Not(testing::Contains(testing::HasSubstr(".experts.2."))));
}

TEST(ExpertRanks, AShardOfExpertsIsOneOfFewer) {
  LlamaForCausalLM network = mixtral();
  const std::vector<std::string> own = network.share_experts(nn::ExpertAxis::of_size(2));
  const ModelCensus census = count_parameters(network, own, 2);
  EXPECT_EQ(census.experts, 2 * 2 * kExpert);
  const int64_t rest = 2 * kRest + 2 * 10 * 8 + 8;
  EXPECT_EQ(census.params, rest + 2 * 2 * kExpert);
  EXPECT_EQ(census.trained_shard(8), rest / 8 + 2 * 2 * kExpert / 4);  // over 8 ranks, 4 of which have the same experts
  EXPECT_EQ(census.bytes(2, 8), 2 * census.trained_shard(8));
  EXPECT_EQ(census.bytes(2), 2 * census.params);
}

// Of two of four experts.
TEST(ExpertRanks, ALinkMultipliesByTheExpertsThatATokenGoesThrough) {
  const std::vector<double> weights = arithmetic_of_links(mixtral());
  EXPECT_THAT(weights, testing::ElementsAre(0, 2 * kExpert + kRest, 2 * kExpert + kRest, 10 * 8 + 8));
}

}  // namespace
}  // namespace tessera::models::expert_ranks_test
