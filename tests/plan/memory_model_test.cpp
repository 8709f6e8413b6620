// Hand arithmetic on a model of round numbers, and zero/policy.h's table.
#include "tessera/plan/memory_model.h"

#include <gtest/gtest.h>

namespace tessera::plan::memory_model_test {
namespace {

using enum OffloadTo;
using config::Dtype;

// 1,000 parameters: embeddings 400 (one matrix), two blocks of 250, a head of 100. Its activations are not known.
ModelCensus model_of_1000() {
  return {.params = 1000,
          .largest_layer = 400,
          .units = {{"embeddings", 400, 400}, {"block.0", 250, 200}, {"block.1", 250, 200}, {"head", 100, 100}}};
}

TrainingSetup mixed(int stage, int64_t ranks) {
  TrainingSetup setup{.stage = stage, .ranks = ranks};
  setup.dtypes = {.compute = Dtype::kBf16, .grad = Dtype::kBf16, .reduce = Dtype::kBf16};
  return setup;
}

// Without what stage 3 gathers.
int64_t model_state(const MemoryNeed& need, Place place = Place::kDevice) {
  int64_t bytes = 0;
  for (const MemoryTerm& term : need.terms) {
    if (term.certain && term.what != "gathered parameters" && term.place == place) bytes += term.bytes;
  }
  return bytes;
}

int64_t term(const MemoryNeed& need, const std::string& what) {
  int64_t bytes = 0;
  for (const MemoryTerm& each : need.terms) bytes += each.what == what ? each.bytes : 0;
  return bytes;
}

TEST(MemoryModel, ModelStateIsThePolicysTable) {
  // Mixed precision on 4 ranks: 2 + 2 + 12, 4 + 12/4, 2 + 14/4, 16/4 bytes a parameter.
  EXPECT_EQ(model_state(memory_need(model_of_1000(), mixed(0, 4))), 16000);
  EXPECT_EQ(model_state(memory_need(model_of_1000(), mixed(1, 4))), 7000);
  EXPECT_EQ(model_state(memory_need(model_of_1000(), mixed(2, 4))), 5500);
  EXPECT_EQ(model_state(memory_need(model_of_1000(), mixed(3, 4))), 4000);
}

TEST(MemoryModel, ModelStateOf512RanksIsTheTablesToo) {
  constexpr int64_t kEach = 1000, kRanks = 512;
  ModelCensus model = model_of_1000();
  model.params *= kRanks;
  for (UnitCensus& unit : model.units) unit.numel *= kRanks;
  EXPECT_EQ(model_state(memory_need(model, mixed(0, kRanks))), 16 * kEach * kRanks);
  EXPECT_EQ(model_state(memory_need(model, mixed(1, kRanks))), 4 * kEach * kRanks + 12 * kEach);
  EXPECT_EQ(model_state(memory_need(model, mixed(2, kRanks))), 2 * kEach * kRanks + 14 * kEach);
  EXPECT_EQ(model_state(memory_need(model, mixed(3, kRanks))), 16 * kEach);
}

TEST(MemoryModel, InFp32TheWeightsAreTheMaster) {
  TrainingSetup setup{.stage = 2, .ranks = 4};
  EXPECT_EQ(model_state(memory_need(model_of_1000(), setup)), 4 * 1000 + 12 * 250);
  setup.state_tensors = 1;  // Lion, Adagrad
  EXPECT_EQ(model_state(memory_need(model_of_1000(), setup)), 4 * 1000 + 8 * 250);
}

// An adapter of 40 parameters in each block: 1,080 in all, of which 1,000 are frozen.
TEST(MemoryModel, FrozenParametersAreWeightsAlone) {
  ModelCensus model{.params = 1080, .frozen = 1000, .largest_layer = 400};
  model.units = {
      {"embeddings", 400, 400, 400}, {"block.0", 290, 200, 250}, {"block.1", 290, 200, 250}, {"head", 100, 100, 100}};
  EXPECT_EQ(model_state(memory_need(model, mixed(0, 4))), 2 * 1080 + 14 * 80);
  EXPECT_EQ(model_state(memory_need(model, mixed(2, 4))), 2 * 1080 + 14 * 20);
  EXPECT_EQ(model_state(memory_need(model, mixed(3, 4))), 2 * 270 + 14 * 20);
  EXPECT_EQ(term(memory_need(model, mixed(0, 1)), "matrix gradients"), 40 * 2);  // of the adapter's, no matrix of 200
  TrainingSetup setup = mixed(2, 2);
  setup.on_cpu = false;
  setup.optimizer = kCpu;
  EXPECT_EQ(model_state(memory_need(model, setup), Place::kHost), 14 * 40);
}

// ZeRO++: of 250 weights a shard, a secondary shard of two ranks has 250 more, and 8 bits are 250 bytes and a scale.
TEST(MemoryModel, WhatIsGatheredOtherwiseThanFromShardsStaysInMemory) {
  TrainingSetup setup = mixed(3, 4);
  setup.secondary_ranks = 2;
  EXPECT_EQ(model_state(memory_need(model_of_1000(), setup)), 4000 + 2 * 250);
  setup.quantized_weights = true;
  EXPECT_EQ(model_state(memory_need(model_of_1000(), setup)), 4000 + 2 * (250 + 4));
  setup.secondary_ranks = 1;
  EXPECT_EQ(model_state(memory_need(model_of_1000(), setup)), 4000 + 250 + 4);
}

TEST(MemoryModel, AnOffloadMovesBytesAndLosesNone) {
  TrainingSetup setup = mixed(2, 2);
  setup.on_cpu = false;
  setup.optimizer = kCpu;
  const MemoryNeed host = memory_need(model_of_1000(), setup);
  EXPECT_EQ(model_state(host), 2 * 1000);                // whole parameters
  EXPECT_EQ(model_state(host, Place::kHost), 14 * 500);  // gradients, master weights and moments of the slice
  setup.stage = 3;
  setup.params = kCpu;
  const MemoryNeed both = memory_need(model_of_1000(), setup);
  EXPECT_EQ(model_state(both), 0);
  EXPECT_EQ(model_state(both, Place::kHost), 16 * 500);
}

TEST(MemoryModel, HostMemoryIsTheDevicesOnACpu) {
  TrainingSetup setup = mixed(2, 2);
  setup.optimizer = kCpu;
  const MemoryNeed need = memory_need(model_of_1000(), setup);
  EXPECT_EQ(model_state(need), 2 * 1000 + 14 * 500);
  EXPECT_EQ(need.bytes(Place::kHost), 0);
}

TEST(MemoryModel, AnOptimizerOnNvmeLeavesItsTilesInMemory) {
  TrainingSetup setup = mixed(1, 2);
  setup.optimizer = kNvme;
  const MemoryNeed at_1 = memory_need(model_of_1000(), setup);
  EXPECT_EQ(at_1.bytes(Place::kNvme), 12 * 500);
  EXPECT_EQ(model_state(at_1), 4 * 1000 + 12 * 200);  // parameters and gradients; the largest slice: 400 / 2
  setup.stage = 2;
  const MemoryNeed at_2 = memory_need(model_of_1000(), setup);
  EXPECT_EQ(at_2.bytes(Place::kNvme), 14 * 500);  // gradients too
  setup.pipeline_read = setup.pipeline_write = true;
  // The slices 200, 125, 125 and 50 pass through three slots, each of which grows to the largest that it takes.
  EXPECT_EQ(term(memory_need(model_of_1000(), setup), "optimizer tiles"), 14 * (200 + 125 + 125));
  const ModelCensus one_unit{.params = 20'000, .largest_layer = 20'000, .units = {{"all", 20'000, 20'000}}};
  setup.sub_group_size = 2048;
  EXPECT_EQ(term(memory_need(one_unit, setup), "optimizer tiles"), 14 * 3 * 2048);
}

// Units of 400, 250, 250 and 100 elements: 0.4 are the embeddings alone, 0.5 need a block besides.
TEST(MemoryModel, ARatioOffloadsTheFirstUnitsThatHoldIt) {
  TrainingSetup setup = mixed(3, 2);
  setup.optimizer = kNvme;
  const auto offloaded = [&](double ratio) {
    setup.optimizer_ratio = ratio;
    const MemoryNeed need = memory_need(model_of_1000(), setup);
    EXPECT_EQ(model_state(need) - term(need, "optimizer tiles") + need.bytes(Place::kNvme), 16 * 500);
    return need.bytes(Place::kNvme);
  };
  EXPECT_EQ(offloaded(0), 0);
  EXPECT_EQ(offloaded(0.4), 14 * 400 / 2);  // gradients, master weights and moments of this rank's slice
  EXPECT_EQ(offloaded(0.5), 14 * 650 / 2);
  EXPECT_EQ(offloaded(1), 14 * 1000 / 2);
}

TEST(MemoryModel, ParametersOnNvmeKeepTheFirstElementsInMemory) {
  TrainingSetup setup = mixed(3, 2);
  setup.params = kNvme;
  setup.max_in_cpu = 200;  // the embeddings' slice
  setup.param_buffers = 2;
  const MemoryNeed need = memory_need(model_of_1000(), setup);
  EXPECT_EQ(need.bytes(Place::kNvme), 2 * 300);
  EXPECT_EQ(term(need, "parameters"), 2 * 500);                          // here and there
  EXPECT_EQ(term(need, "parameters in flight from NVMe"), 2 * 2 * 125);  // two shards of a block
}

// The embeddings' backward: in fp32 the sum of two gradients is a third, and their unit's gradient is one more. What
// the blocks before left is used again, not kept beside it.
TEST(MemoryModel, ThePeakIsThatOfOneMoment) {
  constexpr int64_t kMatrix = 20'000'000;
  const ModelCensus model{
      .params = kMatrix + 1'000'000,
      .units = {{"embeddings", kMatrix, kMatrix}, {"block", 999'000, 500'000}, {"head", 1000, 1000}},
      .head_shares_embeddings = true};
  const MemoryNeed need = memory_need(model, {.stage = 2});
  EXPECT_EQ(term(need, "matrix gradients"), 4 * 3 * kMatrix);
  EXPECT_EQ(term(need, "gradients in flight"), 4 * kMatrix);
}

TEST(MemoryModel, CompressedOptimizersKeepEverythingWhole) {
  TrainingSetup setup{.stage = 1, .ranks = 4, .sign_errors = true};
  EXPECT_EQ(model_state(memory_need(model_of_1000(), setup)), 16 * 1000 + 4 * (1000 + 250));
}

TEST(MemoryModel, Stage3GathersTheSharedMatrixBesideABlock) {
  ModelCensus model = model_of_1000();
  TrainingSetup setup = mixed(3, 2);
  setup.max_live_parameters = 0;
  EXPECT_EQ(term(memory_need(model, setup), "gathered parameters"), 2 * 400);  // the embeddings' own moment
  model.head_shares_embeddings = true;
  EXPECT_EQ(term(memory_need(model, setup), "gathered parameters"), 2 * (400 + 250));
  setup.stage = 2;
  EXPECT_EQ(term(memory_need(model, setup), "gathered parameters"), 0);
}

// Units of 400, 250, 250 and 100 elements. The peak is in the backward of the last block, when the head is let go and
// those before still wait.
TEST(MemoryModel, Stage3KeepsWhatItUsesAgainAsFarAsItMay) {
  const auto gathered = [](int64_t live, int64_t reuse, int64_t ahead, int64_t ranks) {
    TrainingSetup setup = mixed(3, ranks);
    setup.max_live_parameters = live;
    setup.max_reuse_distance = reuse;
    setup.prefetch_bucket_size = ahead;
    return term(memory_need(model_of_1000(), setup), "gathered parameters") / 2;
  };
  EXPECT_EQ(gathered(10'000, 10'000, 0, 1), 250 + 250 + 400);
  EXPECT_EQ(gathered(600, 10'000, 0, 1), 250 + 250);
  EXPECT_EQ(gathered(10'000, 2 * 649, 0, 1), 250 + 250);
  EXPECT_EQ(gathered(10'000, 2 * 650, 0, 1), 250 + 250 + 400);
  EXPECT_EQ(gathered(10'000, 0, 500, 2), 250 + 250);
  EXPECT_EQ(gathered(10'000, 0, 500, 1), 400) << "one rank has nothing to gather ahead: the embeddings' own moment";
}

// A layer of models/bert.cpp, 10 tokens, hidden 8, 2 heads, ffn 32, fp32, dropout: q, k, v, context, two norms' inputs
// and outputs and two masks are 10 x 8 each; three times the scores, 2 heads x 10 x 10; twice 10 x 32. And the
// embeddings' sum, mask and norm, 10 x 8 each.
TEST(MemoryModel, ActivationsOfBertAreThoseThatItsOperationsSave) {
  const auto model = census_of_config({{"hidden_size", 8},
                                       {"num_hidden_layers", 4},
                                       {"num_attention_heads", 2},
                                       {"intermediate_size", 32},
                                       {"max_position_embeddings", 10},
                                       {"vocab_size", 20}},
                                      "");
  TrainingSetup setup{.length = 10};
  const int64_t layer = 4 * (10 * 80 + 3 * 200 + 2 * 320);
  EXPECT_EQ(term(memory_need(*model, setup), "activations"), 4 * layer + 3 * 4 * 80);
  setup.activation_checkpointing = true;
  EXPECT_EQ(term(memory_need(*model, setup), "activations"), layer + 4 * 4 * 80 + 3 * 4 * 80);
}

// Korthikanti et al. 2022, section 4.1: 34 sbh + 5 a s^2 b bytes of a layer in 16 bits, its ffn four times as wide.
// Before the layers the embeddings' sum, mask and norm.
TEST(MemoryModel, ActivationsOfGpt2AreThoseOfThePaper) {
  const auto model = census_of_config(
      {{"model_type", "gpt2"}, {"n_embd", 64}, {"n_layer", 1}, {"n_head", 4}, {"vocab_size", 100}}, "");
  TrainingSetup setup = mixed(0, 1);
  setup.on_cpu = false;
  setup.length = 32;
  setup.micro_batch = 3;
  const int64_t sbh = 32 * 3 * 64;
  EXPECT_EQ(term(memory_need(*model, setup), "activations"), 34 * sbh + 5 * 4 * 32 * 32 * 3 + 3 * 2 * sbh);
}

// Section 4.2.2, of t ranks: all of a layer's are shared out but what goes into its cut layers, 2 of 2sbh, which is
// kept as it is; the paper gathers that again. Its 34 sbh are 2 of 2sbh for the norms' inputs, 2 of sbh for masks, and
// what is cut by heads and features.
TEST(MemoryModel, OverTensorRanksActivationsAreSharedOutButWhatGoesIntoCutLayers) {
  const nlohmann::json gpt2 = {
      {"model_type", "gpt2"}, {"n_embd", 64}, {"n_layer", 1}, {"n_head", 4}, {"vocab_size", 100}};
  TrainingSetup setup = mixed(0, 1);
  setup.on_cpu = false;
  setup.length = 32;
  setup.micro_batch = 3;
  setup.tensor_ranks = 2;
  const int64_t sbh = 32 * 3 * 64, scores = 5 * 4 * 32 * 32 * 3;
  const auto part = census_of_config(gpt2, "", {.sharing = {.tensor = 2}});
  EXPECT_EQ(term(memory_need(*part, setup), "activations"),
            (34 * sbh + scores - 4 * sbh) / 2 + 4 * sbh + 3 * 2 * sbh / 2);
  setup.length = 33;  // 99 tokens: 50 of the rank that has most
  setup.activation_checkpointing = true;
  const auto with_more_layers = [&](int64_t layers) {
    nlohmann::json config = gpt2;
    config["n_layer"] = layers;
    return term(memory_need(*census_of_config(config, "", {.sharing = {.tensor = 2}}), setup), "activations");
  };
  EXPECT_EQ(with_more_layers(3) - with_more_layers(2), 50 * 64 * 2);
}

TEST(MemoryModel, TheSetupIsTheConfigs) {
  const config::DsConfig config =
      config::parse_ds_config(config::Json::parse(R"({"train_micro_batch_size_per_gpu": 3, "bf16": {"enabled": true},
                              "optimizer": {"type": "SGD", "params": {"momentum": 0.9}},
                              "zero_optimization": {"stage": 3, "sub_group_size": 1000,
                                "offload_optimizer": {"device": "nvme", "nvme_path": "/tmp", "pipeline_read": true,
                                                      "ratio": 0.25},
                                "offload_param": {"device": "nvme", "nvme_path": "/tmp", "max_in_cpu": 7}}})"),
                              "ds.json", {.data_parallel_size = 2});
  const TrainingSetup setup = setup_of(config, 2);
  EXPECT_EQ(setup.stage, 3);
  EXPECT_EQ(setup.optimizer, kNvme);
  EXPECT_EQ(setup.params, kNvme);
  EXPECT_EQ(setup.micro_batch, 3);
  EXPECT_EQ(setup.dtypes.compute, Dtype::kBf16);
  EXPECT_EQ(setup.state_tensors, 1);
  EXPECT_EQ(setup.optimizer_ratio, 0.25);
  EXPECT_EQ(setup.sub_group_size, 1000);
  EXPECT_TRUE(setup.pipeline_read);
  EXPECT_FALSE(setup.pipeline_write);
  EXPECT_EQ(setup.max_in_cpu, 7);
}

}  // namespace
}  // namespace tessera::plan::memory_model_test
