// The choices, on a model whose needs are counted by memory_model and limits set between them.
#include "tessera/plan/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::plan::planner_test {
namespace {

using enum OffloadTo;

const ModelCensus& bert_base() {
  static const ModelCensus kModel = *census_of_config(nlohmann::json::object(), "config.json");
  return kModel;
}

TrainingSetup wanted(int64_t ranks) {
  TrainingSetup setup{.ranks = ranks, .micro_batch = 8};
  setup.dtypes = {.compute = config::Dtype::kBf16, .grad = config::Dtype::kBf16, .reduce = config::Dtype::kBf16};
  return setup;
}

// With room for exactly what `setup` needs, and the tenth to spare.
RankShare room_for(TrainingSetup setup, const std::string& nvme = "") {
  setup.max_live_parameters = 0;
  const MemoryNeed need = memory_need(bert_base(), setup);
  const auto with_spare = [](int64_t bytes) { return static_cast<int64_t>(static_cast<double>(bytes) * 1.1) + 1; };
  return {with_spare(need.bytes(Place::kDevice)), with_spare(need.bytes(Place::kHost)), int64_t{1} << 40, nvme};
}

Plan plan_of(const PlanInput& input) {
  const std::optional<Plan> plan = choose_plan(input);
  EXPECT_TRUE(plan.has_value());
  return plan.value_or(Plan{});
}

TEST(Planner, WhereEverythingFitsLittleIsSharded) {
  const RankShare plenty{.device = int64_t{1} << 40, .host = int64_t{1} << 40};
  EXPECT_EQ(plan_of({.model = bert_base(), .wanted = wanted(1), .share = plenty}).setup.stage, 0);
  EXPECT_EQ(plan_of({.model = bert_base(), .wanted = wanted(4), .share = plenty}).setup.stage, 1);
}

TEST(Planner, ShardingComesBeforeActivationCheckpointingAndThatBeforeNvme) {
  TrainingSetup setup = wanted(8);
  for (const int stage : {1, 2, 3}) {
    setup.stage = stage;
    const Plan plan = plan_of({.model = bert_base(), .wanted = wanted(8), .share = room_for(setup, "/nvme")});
    EXPECT_EQ(plan.setup.stage, stage);
    EXPECT_FALSE(plan.setup.activation_checkpointing);
    EXPECT_EQ(plan.setup.optimizer, kNone);
  }
  setup.stage = 3;
  setup.activation_checkpointing = true;
  const Plan checkpointing = plan_of({.model = bert_base(), .wanted = wanted(8), .share = room_for(setup, "/nvme")});
  EXPECT_TRUE(checkpointing.setup.activation_checkpointing);
  EXPECT_EQ(checkpointing.setup.optimizer, kNone);
}

TEST(Planner, OnADeviceOfItsOwnTheOptimizerGoesToTheHostBeforeStage3) {
  TrainingSetup setup = wanted(2);
  setup.on_cpu = false;
  setup.stage = 2;
  setup.optimizer = kCpu;
  const TrainingSetup want = [] {
    TrainingSetup each = wanted(2);
    each.on_cpu = false;
    return each;
  }();
  const Plan plan = plan_of({.model = bert_base(), .wanted = want, .share = room_for(setup)});
  EXPECT_EQ(describe(plan.setup), "stage 2, optimizer on cpu");
}

TEST(Planner, NvmeIsUsedOnlyWhereAFolderIsNamed) {
  TrainingSetup setup = wanted(1);
  setup.stage = 2;
  setup.optimizer = kNvme;
  EXPECT_EQ(describe(plan_of({.model = bert_base(), .wanted = wanted(1), .share = room_for(setup, "/nvme")}).setup),
            "stage 2, optimizer on nvme");
  setup.activation_checkpointing = true;
  EXPECT_FALSE(choose_plan({.model = bert_base(), .wanted = wanted(1), .share = room_for(setup)}).has_value());
}

TEST(Planner, WhatThisVersionRefusesIsNotChosen) {
  TrainingSetup setup = wanted(2);
  setup.stage = 1;
  const Plan plan = plan_of(
      {.model = bert_base(), .wanted = wanted(2), .share = room_for(setup), .refusal = [](const TrainingSetup& each) {
         return each.stage == 1 ? "no" : "";
       }});
  EXPECT_EQ(plan.setup.stage, 2);
}

TEST(Planner, Bf16ComesBeforeASmallerBatch) {
  TrainingSetup fp32{.ranks = 1, .micro_batch = 64, .length = 512};
  TrainingSetup bf16 = fp32;
  bf16.dtypes = wanted(1).dtypes;
  bf16.activation_checkpointing = fp32.activation_checkpointing = true;
  const Plan half = plan_of({.model = bert_base(), .wanted = fp32, .samples_of_a_rank = 64, .share = room_for(bf16)});
  EXPECT_EQ(half.setup.dtypes.compute, config::Dtype::kBf16);
  EXPECT_EQ(half.setup.micro_batch, 64);
  bf16.micro_batch = 16;
  const Plan small = plan_of({.model = bert_base(), .wanted = fp32, .samples_of_a_rank = 64, .share = room_for(bf16)});
  EXPECT_EQ(small.setup.micro_batch, 16);  // the rest of the 64 accumulates
}

TEST(Planner, ThePrintedConfigIsReadByOurOwnParserWithItsReasons) {
  TrainingSetup setup = wanted(2);
  setup.stage = 3;
  const RankShare share = room_for(setup);
  const Plan plan = plan_of({.model = bert_base(), .wanted = wanted(2), .samples_of_a_rank = 8, .share = share});
  const std::string text = print_with_reasons(ds_config_of(plan.setup, 16, share), plan.reasons);
  EXPECT_THAT(text, testing::HasSubstr("// a rank needs"));
  EXPECT_THAT(text, testing::HasSubstr("stage 2, which is faster, would need"));
  const config::DsConfig config = config::parse_ds_config(text, "plan.json", {.data_parallel_size = 2});
  EXPECT_EQ(config.zero.stage, 3);
  EXPECT_EQ(config.batch.global, 16);
  EXPECT_EQ(config.batch.micro, 8);
  EXPECT_TRUE(config::not_yet_supported(config).empty());
}

TEST(Planner, EveryRungOfTheLadderIsAConfigThatParsesToItself) {
  for (const bool on_cpu : {true, false}) {
    for (const int64_t ranks : {1, 4}) {
      TrainingSetup want = wanted(ranks);
      want.on_cpu = on_cpu;
      want.optimizer_ratio = 0.5;  // which stage 3 alone accepts
      const RankShare share{.nvme_path = "/nvme"};
      for (const TrainingSetup& rung : ladder(want, share)) {
        const config::Json json = ds_config_of(rung, 8 * ranks, share);
        const config::DsConfig config = config::parse_ds_config(json, "plan.json", {.data_parallel_size = ranks});
        TrainingSetup read = setup_of(config, ranks);
        EXPECT_EQ(describe(read), describe(rung));
        EXPECT_EQ(read.optimizer_ratio, rung.optimizer_ratio);
        EXPECT_EQ(read.max_in_cpu, rung.max_in_cpu);
        EXPECT_EQ(read.dtypes.compute, rung.dtypes.compute);
      }
    }
  }
}

TEST(Planner, WhatTheUserWroteStays) {
  const config::Json mine = {{"gradient_clipping", 0.5},
                             {"train_batch_size", 64},
                             {"gradient_accumulation_steps", 4},
                             {"zero_optimization", {{"stage", 1}, {"overlap_comm", false}, {"cpu_offload", true}}}};
  TrainingSetup setup = wanted(2);
  setup.stage = 3;
  const config::Json json = ds_config_of(setup, 64, {}, mine);
  EXPECT_EQ(json.at("gradient_clipping"), 0.5);
  EXPECT_EQ(json.at("zero_optimization"), (config::Json{{"stage", 3}, {"overlap_comm", false}}));
  EXPECT_FALSE(json.contains("gradient_accumulation_steps"));
}

// Stage 2 cannot offload half of the optimizer.
TEST(Planner, ARatioOfTheUsersGivesWayToThePlans) {
  const config::Json mine = {
      {"optimizer", {{"type", "Adam"}}},
      {"zero_optimization",
       {{"stage", 3}, {"offload_optimizer", {{"device", "nvme"}, {"nvme_path", "/mine"}, {"ratio", 0.5}}}}}};
  TrainingSetup setup = wanted(2);
  setup.stage = 2;
  setup.optimizer = kNvme;
  const config::Json json = ds_config_of(setup, 16, {.nvme_path = "/nvme"}, mine);
  const config::DsConfig config = config::parse_ds_config(json, "plan.json", {.data_parallel_size = 2});
  EXPECT_EQ(config.zero.offload_optimizer.ratio, 1);
}

}  // namespace
}  // namespace tessera::plan::planner_test
