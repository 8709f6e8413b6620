#include "tessera/config/ds_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tessera/base/error.h"
#include "tessera/config/key_check.h"
#include "tests/support/built_places.h"

namespace tessera::config::ds_config_test {
namespace {

DsConfig parse(const std::string& text, const DsConfigInput& input = {}) {
  return parse_ds_config(text, "ds.json", input);
}

// The values are the document's own: a BERT tutorial's ds_config for four GPUs, comments and all.
TEST(DsConfig, ReadsTheTutorialsFileIntoItsFields) {
  const std::string path = test::source_folder() + "/tests/config/configs/document_004_bert.json";
  const DsConfig config = load_ds_config(path, {.data_parallel_size = 4});
  EXPECT_EQ(config.batch.global, 4);
  EXPECT_EQ(config.batch.micro, 1);
  EXPECT_EQ(config.batch.accumulation, 1);
  EXPECT_EQ(config.dtypes.compute, Dtype::kFp32);
  EXPECT_EQ(config.zero.stage, 3);
  EXPECT_EQ(config.gradient_clipping, 1.0);  // DeepSpeed's default
  ASSERT_TRUE(config.optimizer);
  EXPECT_EQ(config.optimizer->type, "Adam");
  EXPECT_EQ(config.optimizer->lr, 1e-4);
  EXPECT_EQ(config.optimizer->beta2, 0.999);
  EXPECT_EQ(config.optimizer->eps, 1e-8);
  EXPECT_EQ(config.optimizer->params["adam_w_mode"], true);  // "Adam" means AdamW unless adam_w_mode is false
  EXPECT_EQ(config.optimizer->where, path + ":14:9");
  EXPECT_FALSE(config.scheduler);
  EXPECT_FALSE(config.steps_per_print);
  EXPECT_NO_THROW(require_supported(config));
}

TEST(DsConfig, DecouplesTheDecayOfAdamWWhateverTheFlagSays) {
  const auto decoupled = [](const std::string& type) -> bool {
    return parse(R"({"train_batch_size": 1, "optimizer": {"type": ")" + type +
                 R"(", "params": {"adam_w_mode": false}}})")
        .optimizer->params["adam_w_mode"];
  };
  EXPECT_FALSE(decoupled("Adam"));
  EXPECT_TRUE(decoupled("AdamW"));
  EXPECT_TRUE(decoupled("adamw"));  // the name is read without regard to case
}

TEST(DsConfig, ReadsTheAioBlock) {
  const DsConfig config = parse(R"({"train_batch_size": 1, "aio": {"block_size": 262144, "queue_depth": 32,
      "intra_op_parallelism": 2, "single_submit": true, "overlap_events": false}})");
  EXPECT_EQ(config.aio.block_bytes, 262144);
  EXPECT_EQ(config.aio.queue_depth, 32);
  EXPECT_EQ(config.aio.intra_op_parallelism, 2);
  EXPECT_TRUE(config.aio.single_submit);
  EXPECT_FALSE(config.aio.overlap_events);
  EXPECT_TRUE(config.warnings.empty());
}

// Defaults of WarmupLR: min 0, max the optimizer's own rate (None), 1000 steps, log.
TEST(DsConfig, FillsTheSchedulersDefaultsIn) {
  const DsConfig config = parse(R"({"train_batch_size": 1, "scheduler": {"type": "WarmupLR", "params": {}}})");
  ASSERT_TRUE(config.scheduler);
  EXPECT_EQ(config.scheduler->params, Json({{"warmup_min_lr", 0.0},
                                            {"warmup_max_lr", nullptr},
                                            {"warmup_num_steps", 1000},
                                            {"warmup_type", "log"},
                                            {"last_batch_iteration", -1}}));
}

TEST(DsConfig, SaysWhereEachValueCameFrom) {
  const DsConfig config =
      parse("{\"train_batch_size\": \"auto\",\n \"train_micro_batch_size_per_gpu\": 2}", {.data_parallel_size = 8});
  const auto origin = [&](const std::string& path) {
    for (const ResolvedKey& key : config.keys) {
      if (key.path == path) return key.origin;
    }
    return std::string("not there");
  };
  EXPECT_EQ(origin("train_batch_size"), "auto at ds.json:1:2 -> micro 2 x accumulation 1 x 8 data-parallel ranks");
  EXPECT_EQ(origin("train_micro_batch_size_per_gpu"), "ds.json:2:2");
  EXPECT_EQ(origin("gradient_clipping"), "default");
}

TEST(DsConfig, ListsAllThatIsNotSupportedYetInOneError) {
  const DsConfig config =
      parse("{\"train_batch_size\": 1, \"comet\": {\"enabled\": true},\n \"wandb\": {\"enabled\": true}}");
  try {
    require_supported(config);
    FAIL() << "was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfig);
    EXPECT_THAT(error.what(), testing::HasSubstr("ds.json:1:35: 'comet.enabled' is true: not supported yet"));
    EXPECT_THAT(error.what(), testing::HasSubstr("ds.json:2:12: 'wandb.enabled' is true: not supported yet"));
  }
}

TEST(DsConfig, OfAProgramsValueShowsTheProgramAsThePlace) {
  try {
    parse_ds_config(Json{{"train_batch_siz", 4}}, "the config argument", {});
    FAIL() << "was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.report().where, "the config argument");
    EXPECT_EQ(error.report().fix, "did you mean 'train_batch_size'?");
  }
}

TEST(DsConfig, GivesTheDefaultOfAKeyWhoseBlockIsNotThere) {
  const DsConfig config = parse(R"({"train_batch_size": 1})");
  EXPECT_EQ(config.value("zero_optimization.offload_param.buffer_count"), 5);
  EXPECT_EQ(config.zero.offload_optimizer.device, "none");
}

TEST(DsConfig, ReadsHowActivationCheckpointsKeepTheirInputs) {
  const DsConfig config = parse(R"({"train_batch_size": 1, "activation_checkpointing": {"partition_activations": true,
      "contiguous_memory_optimization": true, "number_checkpoints": 12, "cpu_checkpointing": true}})");
  EXPECT_TRUE(config.activation_checkpointing.contiguous_memory_optimization);
  EXPECT_TRUE(config.activation_checkpointing.cpu_checkpointing);
  EXPECT_FALSE(config.activation_checkpointing.profile);
  EXPECT_EQ(config.activation_checkpointing.number_checkpoints, 12);
  EXPECT_NO_THROW(require_supported(config));
}

// `tessera config check --all` shows defaults, which users copy: what is copied must be taken, and change nothing.
TEST(DsConfig, TakesEveryDefaultThatItShows) {
  const DsConfig shown = parse(R"({"train_batch_size": 1, "optimizer": {"type": "AdamW"}})");
  Json copied = Json::object();
  for (const ResolvedKey& key : shown.keys) {
    if (!key.value.is_null()) copied[pointer_to(key.path)] = key.value;
  }
  const DsConfig config = parse_ds_config(copied, "the copy", {});
  EXPECT_NO_THROW(require_supported(config));
  EXPECT_TRUE(config.warnings.empty()) << config.warnings.front();
  for (const ResolvedKey& key : config.keys) EXPECT_EQ(key.value, shown.value(key.path)) << key.path;
}

TEST(DsConfig, AKeyThatActsAtOneDoorIsNoWarningThere) {
  const std::string text =
      R"({"train_batch_size": 1, "zero_optimization": {"stage": 3, "leaf_module": {"names": ["experts"]}}})";
  EXPECT_THAT(parse(text).warnings, testing::ElementsAre(testing::HasSubstr("accepted but has no effect")));
  EXPECT_TRUE(parse(text, {.door = Door::kPython}).warnings.empty());
}

TEST(DsConfig, WhatIsAlwaysSoIsTakenWithoutAWord) {
  const DsConfig config = parse(
      R"({"train_batch_size": 1, "zero_allow_untested_optimizer": true, "checkpoint": {"load_universal": true}})");
  EXPECT_TRUE(config.warnings.empty());
  EXPECT_NO_THROW(require_supported(config));
}

TEST(DsConfig, AWriterOfCheckpointsIsRefusedWithWhatThereIsInstead) {
  try {
    require_supported(parse(R"({"train_batch_size": 1, "checkpoint": {"writer": {"type": "FAST"}}})"));
    FAIL() << "taken";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("checkpoint.async_save"));
  }
}

// Every file that other programs write must at least be understood; cases/clients.yaml says what each resolves to.
TEST(DsConfig, UnderstandsEveryClientsFile) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(test::source_folder() + "/tests/config/configs")) {
    EXPECT_NO_THROW(load_ds_config(entry.path().string(), {.data_parallel_size = 4})) << entry.path();
    ++files;
  }
  EXPECT_GE(files, 17);
}

}  // namespace
}  // namespace tessera::config::ds_config_test
