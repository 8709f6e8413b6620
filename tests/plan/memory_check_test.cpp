#include "tessera/plan/memory_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::plan::memory_check_test {
namespace {

constexpr uint64_t kMuch = uint64_t{1} << 40;

// BERT base in fp32: 109,514,298 parameters, 16 bytes each at stage 0.
struct Check {
  ModelCensus model = *census_of_config(nlohmann::json::object(), "config.json");
  TrainingSetup setup = {};
  MachineRoom room = {.available = kMuch};
  int64_t ranks_of_host = 1;

  std::string refusal() const {
    try {
      check_fits({.model = model, .setup = setup, .room = room, .ranks_of_host = ranks_of_host, .where = "run.yaml"});
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kMachine);
      EXPECT_EQ(exit_code(error.kind()), 2);
      return error.what();
    }
    return "";
  }
};

constexpr uint64_t kState = 16ull * 109514298;

TEST(MemoryCheck, RefusesOnlyBelowWhatStaysBetweenSteps) {
  Check check;
  check.room.available = kState;
  EXPECT_EQ(check.refusal(), "");
  check.room.available = kState - 1;
  EXPECT_THAT(check.refusal(),
              testing::AllOf(testing::HasSubstr("needs at least 1.75 GB"), testing::HasSubstr("run.yaml"),
                             testing::HasSubstr("training.memory_check: false")));
}

TEST(MemoryCheck, AllRanksOfAHostShareItsMemory) {
  Check check{.ranks_of_host = 2};
  check.setup.ranks = 2;
  check.room.available = 2 * kState - 1;
  EXPECT_THAT(check.refusal(), testing::HasSubstr("3.50 GB for 2 ranks at 1.75 GB each"));
  check.room.available = 2 * kState;
  EXPECT_EQ(check.refusal(), "");
}

TEST(MemoryCheck, FreeSwapIsRoomTooBecauseSuchARunEnds) {
  Check check;
  check.room = {.available = kState / 2, .free_swap = kState};
  EXPECT_EQ(check.refusal(), "");
}

TEST(MemoryCheck, TheLimitOfAProcessCounts) {
  Check check;
  check.room.process_left = kState - 1;
  EXPECT_THAT(check.refusal(), testing::HasSubstr("ulimit"));
}

TEST(MemoryCheck, WhatIsNotKnownRefusesNothing) {
  Check check;
  check.room = {};
  EXPECT_EQ(check.refusal(), "");
}

TEST(MemoryCheck, TheDiskMustHoldWhatIsSwapped) {
  Check check;
  check.setup.stage = 2;
  check.setup.optimizer = OffloadTo::kNvme;
  check.room.nvme_path = "/nvme";
  check.room.disk = kMuch;
  EXPECT_EQ(check.refusal(), "");
  check.room.disk = 1'000'000;
  EXPECT_THAT(check.refusal(), testing::HasSubstr("on the disk of /nvme"));
}

TEST(MemoryCheck, TheFixNamesAPlanThatFits) {
  Check check;
  check.setup = {.ranks = 16, .micro_batch = 1, .length = 32};
  check.room.available = kState - 1;  // 16 hosts of one rank each
  EXPECT_THAT(check.refusal(), testing::HasSubstr("stage 1 with a micro batch of 1 would fit"));
}

}  // namespace
}  // namespace tessera::plan::memory_check_test
