#include "tessera/config/run_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tessera/base/error.h"

namespace tessera::config::run_file_test {
namespace {

class RunFileTest : public testing::Test {
 protected:
  RunFileTest() { std::filesystem::create_directories(folder_); }
  ~RunFileTest() override { std::filesystem::remove_all(folder_); }

  std::string write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name) << text;
    return (folder_ / name).string();
  }
  std::string in_folder(const std::string& name) const { return (folder_ / name).string(); }

  const std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("tessera_run_file_test_" + std::to_string(getpid()));
  const std::string ds_ = R"({"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 1}})";
  const std::string run_ = "model: {path: minilm}\ntask: mlm\ndata: {train: a.parquet}\ndeepspeed: ds.json\n";
};

TEST_F(RunFileTest, HasDefaultsForAllThatIsNotSaid) {
  write("ds.json", ds_);
  const RunFile run = load_run_file(write("run.yaml", run_), {});
  EXPECT_EQ(run.model.init, RunFile::Model::Init::kPretrained);
  EXPECT_FALSE(run.model.dropout);
  EXPECT_EQ(run.tokenizer, run.model.path);
  EXPECT_EQ(run.data.max_length, 128);
  EXPECT_EQ(run.data.padding, RunFile::Data::Padding::kMaxLength);
  EXPECT_EQ(run.data.mlm_probability, 0.15);
  EXPECT_TRUE(run.data.eval.empty());
  EXPECT_EQ(run.training.epochs, 3);
  EXPECT_EQ(run.training.seed, 42);
  EXPECT_EQ(run.training.keep_last, 2);
  EXPECT_EQ(run.training.device, "auto");
  EXPECT_FALSE(run.training.activation_checkpointing);
}

TEST_F(RunFileTest, ReadsPathsFromItsFolderAndThoseOfOverridesFromTheCurrentOne) {
  write("ds.json", ds_);
  const std::string path = write("run.yaml", run_);
  const RunFile run = load_run_file(path, {"data.eval=[b.parquet, /abs/c.parquet]", "output=here"});
  EXPECT_EQ(run.model.path, in_folder("minilm"));
  EXPECT_THAT(run.data.train, testing::ElementsAre(in_folder("a.parquet")));
  EXPECT_THAT(run.data.eval, testing::ElementsAre("b.parquet", "/abs/c.parquet"));
  EXPECT_EQ(run.output, "here");
  EXPECT_EQ(load_run_file(path, {}).output, in_folder("out"));
}

TEST_F(RunFileTest, OverridesReachIntoTheFileThatDeepspeedNames) {
  write("ds.json", ds_);
  const RunFile run = load_run_file(write("run.yaml", run_), {"deepspeed.zero_optimization.stage=3"});
  const DsConfig config = resolve_ds_config(run, {.data_parallel_size = 2});
  EXPECT_EQ(config.zero.stage, 3);
  EXPECT_EQ(config.batch.global, 8);  // 4 x 1 x 2
}

TEST_F(RunFileTest, ErrorsInTheDsConfigNameThatFile) {
  write("ds.json", R"({"train_micro_batch_size_per_gpu": 4, "zero_optimisation": {}})");
  const RunFile run = load_run_file(write("run.yaml", run_), {});
  try {
    resolve_ds_config(run, {});
    FAIL() << "was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.report().where, in_folder("ds.json") + ":1:39");
    EXPECT_EQ(error.report().fix, "did you mean 'zero_optimization'?");
  }
}

TEST_F(RunFileTest, MayBeJsonWithComments) {
  const std::string path = write("run.json", R"(// a run
{"model": {"path": "m"}, "task": "mlm", "data": {"train": ["a", "b"]}, "deepspeed": {"train_batch_size": 2,},})");
  const RunFile run = load_run_file(path, {});
  EXPECT_EQ(run.data.train.size(), 2u);
  EXPECT_EQ(resolve_ds_config(run, {}).batch.micro, 2);
}

TEST_F(RunFileTest, SaysThatTheDsConfigIsMissingWhereItIsNamed) {
  const std::string path = write("run.yaml", run_);
  try {
    load_run_file(path, {});
    FAIL() << "was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.report().where, path + ":4:1");
    EXPECT_THAT(error.what(), testing::HasSubstr(in_folder("ds.json")));
  }
}

}  // namespace
}  // namespace tessera::config::run_file_test
