// Ways to share a model: which there are, what they cost by hand, and when the planner takes one.
#include "tessera/plan/sharing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/plan/planner.h"

namespace tessera::plan::sharing_test {
namespace {

using testing::HasSubstr;

constexpr int64_t kLayers = 4, kHidden = 256, kHeads = 8, kKeyHeads = 4;

const nlohmann::json& llama() {
  static const nlohmann::json kConfig = {{"model_type", "llama"},
                                         {"architectures", {"LlamaForCausalLM"}},
                                         {"hidden_size", kHidden},
                                         {"intermediate_size", 1024},
                                         {"num_hidden_layers", kLayers},
                                         {"num_attention_heads", kHeads},
                                         {"num_key_value_heads", kKeyHeads},
                                         {"vocab_size", 8000},
                                         {"max_position_embeddings", 1 << 20}};
  return kConfig;
}

ModelCensus census_over(const Sharing& sharing, const nlohmann::json& config = llama()) {
  return *census_of_config(config, "config.json", {.sharing = sharing});
}

TrainingSetup setup_of_ranks(int64_t ranks, int64_t length) {
  TrainingSetup setup{.ranks = ranks, .micro_batch = 2, .length = length};
  setup.dtypes = {.compute = config::Dtype::kBf16, .grad = config::Dtype::kBf16, .reduce = config::Dtype::kBf16};
  return setup;
}

std::vector<std::string> ways(const Cluster& cluster) {
  std::vector<std::string> all;
  for (const Sharing& sharing : ways_to_share(cluster)) {
    all.push_back(std::to_string(sharing.tensor) + std::to_string(sharing.context) + std::to_string(sharing.pipeline));
  }
  return all;
}

TEST(Sharing, WaysAreFactorsOfTheRanksWithTensorAndContextRanksWithinAHost) {
  EXPECT_THAT(ways({.hosts = 1, .ranks_of_host = 1}), testing::IsEmpty());
  EXPECT_THAT(ways({.hosts = 1, .ranks_of_host = 4}),
              testing::ElementsAre("112", "121", "211", "114", "122", "141", "212", "221", "411"));
  EXPECT_THAT(ways({.hosts = 2, .ranks_of_host = 2}), testing::ElementsAre("112", "121", "211", "114", "122", "212"));
  EXPECT_THAT(ways({.hosts = 1, .ranks_of_host = 3}), testing::ElementsAre("113", "131", "311"));
}

// A step of 4 samples of 100 tokens by the two ranks that share a model.
struct Cost {
  Sharing sharing;
  Cluster cluster = {.hosts = 1, .ranks_of_host = 2};
  int stage = 1;
  bool recomputes = false;

  static constexpr int64_t kSamples = 4, kLength = 100;
  static constexpr double kHiddenBytes = kSamples * kLength * kHidden * 2.0;

  StepCost operator()() const {
    TrainingSetup setup = shared(setup_of_ranks(cluster.ranks(), kLength), sharing);
    setup.stage = stage;
    setup.activation_checkpointing = recomputes;
    return step_cost(census_over({}), census_over(sharing), setup, sharing, cluster, kSamples);
  }
};

TEST(Sharing, TensorRanksSendHiddenStatesTwiceALayerEachWayAndOnceMore) {
  const StepCost cost = Cost{{.tensor = 2}}();
  EXPECT_DOUBLE_EQ(cost.bytes_in_host, 2 * (2 * kLayers + 1) * Cost::kHiddenBytes);  // 2 (n - 1) / n is 1
  EXPECT_EQ(cost.bytes_between, 0);
  EXPECT_EQ(cost.idle_share, 0);
}

// By Ulysses 2 e (2 h + 2 K) (n - 1) / n features of a head for each token, of which a rank has half; and the
// gradients and parameters, which context ranks shard.
TEST(Sharing, ContextRanksSendWhatAttentionExchangesAndShardTheModel) {
  const StepCost cost = Cost{{.context = 2}}();
  const double exchanged = 2 * 2.0 * (2 * kHeads + 2 * kKeyHeads) / 2 * (kHidden / kHeads);
  const double params = static_cast<double>(census_over({}).params);
  EXPECT_DOUBLE_EQ(cost.bytes_in_host, kLayers * exchanged * Cost::kSamples * Cost::kLength / 2 + params * 2);
}

// Two micro batches over two ranks: 1F1B idles 1 / (2 + 1).
TEST(Sharing, StagesSendAHiddenStateEachWayAndIdleAtBothEndsOfAStep) {
  const StepCost cost = Cost{{.pipeline = 2}}();
  EXPECT_DOUBLE_EQ(cost.bytes_in_host, 2 * Cost::kHiddenBytes);
  EXPECT_DOUBLE_EQ(cost.idle_share, 1.0 / 3);
  EXPECT_DOUBLE_EQ(cost.total, cost.arithmetic * 1.5 + cost.bytes_in_host * kOfCpu.in_host);
}

TEST(Sharing, AcrossHostsAPipelineSendsBetweenThemAndTensorRanksWithin) {
  const StepCost cost = Cost{{.tensor = 2, .pipeline = 2}, {.hosts = 2, .ranks_of_host = 2}}();
  EXPECT_DOUBLE_EQ(cost.bytes_between, 2 * Cost::kHiddenBytes);
  EXPECT_DOUBLE_EQ(cost.bytes_in_host, 2 * (2 * kLayers / 2.0 + 1) * Cost::kHiddenBytes);
}

TEST(Sharing, ZeroSendsThePartOfARankTwiceAStepOrThreeTimesAMicroBatch) {
  const Cluster four{.hosts = 2, .ranks_of_host = 2};
  const double part = static_cast<double>(census_over({.tensor = 2}).params) * 2;
  EXPECT_DOUBLE_EQ((Cost{{.tensor = 2}, four}().bytes_between), 2 * part / 2);
  EXPECT_DOUBLE_EQ((Cost{{.tensor = 2}, four, 3}().bytes_between), 3 * 2 * part / 2);
}

TEST(Sharing, RecomputationIsAThirdMoreArithmetic) {
  Cost cost{{.tensor = 2}};
  const double once = cost().arithmetic;
  EXPECT_DOUBLE_EQ(2 * once, micro_batch_flops(census_over({}), [] {
                     TrainingSetup all = setup_of_ranks(1, Cost::kLength);
                     all.micro_batch = Cost::kSamples;
                     return all;
                   }()));
  cost.recomputes = true;
  EXPECT_DOUBLE_EQ(cost().arithmetic, once * 4 / 3);
}

// A rank's part, by the layers of a Llama: q, k, v, o, gate, up, down; its embeddings and head by words.
TEST(Sharing, ACensusOverRanksIsOfTheLargestPart) {
  constexpr int64_t kWords = 8000 * kHidden,
                    kMatrices = 2 * kHidden * kHidden + 2 * kHidden * kHidden / 2 + 3 * kHidden * 1024;
  EXPECT_EQ(census_over({}).params, 2 * kWords + kLayers * (kMatrices + 2 * kHidden) + kHidden);
  EXPECT_EQ(census_over({.tensor = 2}).params, kWords + kLayers * (kMatrices / 2 + 2 * kHidden) + kHidden);
  EXPECT_EQ(census_over({.context = 2}).params, census_over({}).params);
  EXPECT_LT(census_over({.pipeline = 2}).params, census_over({}).params * 2 / 3);
  EXPECT_THROW(census_over({.pipeline = 7}), Error);                           // embeddings, 4 layers, head
  EXPECT_THROW(census_over({.context = 2}, nlohmann::json::object()), Error);  // BERT
}

struct Planning {
  Cluster cluster{.hosts = 1, .ranks_of_host = 4};
  TrainingSetup wanted;
  RankShare share;
  nlohmann::json config = llama();

  std::optional<Plan> operator()() const {
    const ModelCensus model = census_over({}, config);
    return choose_plan({.model = model,
                        .wanted = wanted,
                        .samples_of_a_rank = 2,
                        .share = share,
                        .cluster = cluster,
                        .part_of = [&](const Sharing& sharing) { return census_over(sharing, config); }});
  }
};

TEST(Sharing, APlanSharesSequencesWhereOneOfThemDoesNotFit) {
  Planning plan{.wanted = setup_of_ranks(4, 1 << 17), .share = {.device = 3'000'000'000}};
  plan.share.nvme_path = "/nvme";  // which holds no activations, and comes after
  plan.share.nvme = int64_t{1} << 40;
  const auto found = plan();
  ASSERT_TRUE(found.has_value());
  EXPECT_GT(found->sharing.context, 1);
  EXPECT_EQ(found->sharing.tensor, 1);
  EXPECT_LE(found->need.bytes(Place::kDevice), plan.share.device);
  EXPECT_EQ(found->need.bytes(Place::kNvme), 0);
  EXPECT_THAT(found->reasons[0].text, HasSubstr("set parallel.context: "));
  EXPECT_THAT(found->reasons[0].text, HasSubstr("data-parallel ranks alone would need"));
  EXPECT_THAT(found->reasons[1].text, HasSubstr("a step within its host"));
}

TEST(Sharing, APlanCutsMatricesWhereALayerDoesNotFit) {
  Planning plan{.wanted = setup_of_ranks(4, 16), .share = {}};
  plan.config["intermediate_size"] = 1 << 19;
  const ModelCensus whole = census_over({}, plan.config);
  plan.share.device =
      whole.params * 16 / 4 + whole.largest_block().numel * 6;  // a fourth of the state beside parts of a block
  const auto found = plan();
  ASSERT_TRUE(found.has_value());
  EXPECT_GT(found->sharing.tensor, 1);
  EXPECT_EQ(found->sharing.context, 1);
}

TEST(Sharing, APlanSharesNothingWhereDataParallelismFits) {
  Planning plan{.wanted = setup_of_ranks(4, 128), .share = {.device = int64_t{1} << 40}};
  EXPECT_EQ(plan()->sharing.ranks(), 1);
  EXPECT_EQ(plan()->setup.stage, 1);
}

TEST(Sharing, APlanOfAModelThatCannotBeSharedIsOfDataParallelRanks) {
  Planning plan{.wanted = setup_of_ranks(4, 512), .share = {.device = 200'000'000}};
  EXPECT_FALSE(plan().has_value());
}

}  // namespace
}  // namespace tessera::plan::sharing_test
