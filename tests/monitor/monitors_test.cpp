#include "tessera/monitor/monitors.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tessera/base/error.h"
#include "tessera/monitor/scalar_log.h"
#include "tests/support/temporary_folder.h"

namespace tessera::monitor::monitors_test {
namespace {

using nlohmann::json;

class Jsonl : public testing::Test {
 protected:
  std::unique_ptr<Monitor> start(int64_t resumed_step = 0) {
    return std::move(start_monitors({"jsonl"}, {.output = folder_.path(), .resumed_step = resumed_step}).at(0));
  }

  std::vector<json> rows() const {
    std::vector<json> all;
    std::ifstream file(folder_.path() / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) all.push_back(json::parse(line));
    return all;
  }

  test::TemporaryFolder folder_;
};

TEST_F(Jsonl, ALineIsInTheFileWhenItsCallReturnsAndItsNumbersHaveTheSameBits) {
  const auto monitor = start();
  EXPECT_EQ(monitor->place(), folder_.path() / "metrics.jsonl");
  monitor->step({.step = 1, .loss = 0.1 + 0.2, .lr = 1e-300, .tokens = int64_t{1} << 60});
  ASSERT_EQ(rows().size(), 1u);
  EXPECT_EQ(rows()[0]["loss"].get<double>(), 0.1 + 0.2);
  EXPECT_EQ(rows()[0]["lr"].get<double>(), 1e-300);
  EXPECT_EQ(rows()[0]["tokens"].get<int64_t>(), int64_t{1} << 60);
  monitor->evaluation({.step = 1, .loss = 2.5, .samples = 7, .seconds = 0.5});
  EXPECT_EQ(rows().at(1), json({{"step", 1}, {"eval_loss", 2.5}, {"eval_samples", 7}, {"eval_seconds", 0.5}}));
  monitor->evaluation({.step = 2, .loss = 2.5, .others = {{"accuracy", 0.1 + 0.2}}});
  EXPECT_EQ(rows().at(2)["eval_accuracy"].get<double>(), 0.1 + 0.2);
}

TEST_F(Jsonl, ASkippedStepHasNoNorm) {
  start()->step({.step = 1, .grad_norm = std::nan("")});
  EXPECT_TRUE(rows().at(0)["grad_norm"].is_null());
}

TEST_F(Jsonl, AResumedRunForgetsTheStepsThatItTakesAgain) {
  {
    const auto monitor = start();
    for (int64_t step = 1; step <= 5; ++step) monitor->step({.step = step});
    monitor->evaluation({.step = 5});
  }
  std::ofstream(folder_.path() / "metrics.jsonl", std::ios::app) << "{\"step\": 6, \"lo";  // what a power cut left
  start(3)->step({.step = 4, .loss = 9});
  ASSERT_EQ(rows().size(), 4u);
  EXPECT_EQ(rows()[3]["step"], 4);
  EXPECT_EQ(rows()[3]["loss"], 9.0);
  start();
  EXPECT_TRUE(rows().empty());  // a new run begins anew
}

// A limit of the size of files refuses as a full disk does, and needs no disk of one's own.
// Its first byte cannot be read: nothing is mapped at address 0.
TEST_F(Jsonl, RowsThatCannotBeReadAreNotThrownAway) {
  const auto path = folder_.path() / "metrics.jsonl";
  std::filesystem::create_symlink("/proc/self/mem", path);
  EXPECT_THROW(start(3), Error);
  EXPECT_TRUE(std::filesystem::is_symlink(path));
}

TEST_F(Jsonl, LinesWaitForRoom) {
  signal(SIGXFSZ, SIG_IGN);
  rlimit before = {};
  getrlimit(RLIMIT_FSIZE, &before);
  {
    const auto monitor = start();
    monitor->step({.step = 1});
    const rlim_t full = std::filesystem::file_size(folder_.path() / "metrics.jsonl") + 10;  // in the middle of a line
    const rlimit limit{full, before.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
    for (int64_t step = 2; step <= 4; ++step) monitor->step({.step = step});
    EXPECT_EQ(std::filesystem::file_size(folder_.path() / "metrics.jsonl"), full);
    setrlimit(RLIMIT_FSIZE, &before);
    monitor->step({.step = 5});
    ASSERT_EQ(rows().size(), 5u);
    for (int64_t step = 1; step <= 5; ++step) EXPECT_EQ(rows()[static_cast<size_t>(step) - 1]["step"], step);
  }
  signal(SIGXFSZ, SIG_DFL);
}

TEST(Monitors, AnUnknownNameIsAnErrorWithTheNearest) {
  try {
    check_monitors({"jsonl", "json"}, "run.yaml, monitors");
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfig);
    EXPECT_EQ(error.report().what, "there is no monitor 'json'");
    EXPECT_EQ(error.report().where, "run.yaml, monitors");
    EXPECT_EQ(error.report().fix, "did you mean 'jsonl'? known: jsonl, csv, tensorboard");
  }
}

TEST(Monitors, ANameThatIsTakenCannotBeAddedAgain) {
  EXPECT_THROW(monitors().add({"JSONL", "another", make_jsonl_monitor}), Error);
  EXPECT_EQ(monitors().table().names().size(), 3u);
}

std::string text_of(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

TEST(CsvLog, HasAFileForEachNameAndForgetsWhatIsTakenAgain) {
  const test::TemporaryFolder folder;
  {
    const auto log = make_csv_log(folder.path() / "csv", 0);
    for (int64_t at = 1; at <= 3; ++at) log->add("train/loss", 0.1 * static_cast<double>(at), at);
    log->add("eval/accuracy of all", std::nan(""), 3);
    EXPECT_EQ(log->place(), folder.path() / "csv");
  }
  EXPECT_EQ(text_of(folder.path() / "csv/train_loss.csv"), "step,loss\n1,0.1\n2,0.2\n3,0.30000000000000004\n");
  EXPECT_EQ(text_of(folder.path() / "csv/eval_accuracy_of_all.csv"), "step,accuracy of all\n3,nan\n");
  make_csv_log(folder.path() / "csv", 2)->add("train/loss", 7, 3);
  EXPECT_EQ(text_of(folder.path() / "csv/train_loss.csv"), "step,loss\n1,0.1\n2,0.2\n3,7\n");
  make_csv_log(folder.path() / "csv", kEverythingStays)->add("train/loss", 8, 1);
  EXPECT_EQ(text_of(folder.path() / "csv/train_loss.csv"), "step,loss\n1,0.1\n2,0.2\n3,7\n1,8\n");
}

// The first record of every event file is the same but for its time: tensorflow/core/util/events_writer.cc. That
// TensorBoard reads the rest is shown in tests/python/test_told.py.
TEST(TensorBoardLog, BeginsWithItsVersionAndHasARecordANumber) {
  const test::TemporaryFolder folder;
  make_tensorboard_log(folder.path(), kEverythingStays)->add("train/loss", 0.5, 300);
  const std::filesystem::path path = std::filesystem::directory_iterator(folder.path())->path();
  EXPECT_EQ(path.filename().string().rfind("events.out.tfevents.", 0), 0u);
  const std::string text = text_of(path);
  const std::string length("\x1A\0\0\0\0\0\0\0", 8);  // 26 bytes: time 9, step 2, version 2 + 13
  ASSERT_EQ(text.substr(0, 8), length);
  EXPECT_EQ(text.substr(8, 4), "\x12\x9B\xD8\x2D");  // its masked crc32c
  EXPECT_EQ(text.substr(12 + 11, 15),
            "\x1A\x0D"
            "brain.Event:2");
  const std::string second = text.substr(12 + 26 + 4);
  EXPECT_EQ(second.substr(12 + 9, 3), "\x10\xAC\x02");  // step 300
  EXPECT_NE(second.find("\x0A\x0Atrain/loss\x15" + std::string("\0\0\0\x3F", 4)), std::string::npos);
  EXPECT_EQ(second.size(), 8 + 4 + static_cast<size_t>(static_cast<uint8_t>(second[0])) + 4);
}

}  // namespace
}  // namespace tessera::monitor::monitors_test
