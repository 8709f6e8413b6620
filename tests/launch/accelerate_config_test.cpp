#include "tessera/launch/accelerate_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tessera/base/error.h"
#include "tests/support/temporary_folder.h"

namespace tessera::launch::accelerate_config_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class AccelerateFile : public testing::Test {
 protected:
  AccelerateConfig load(const std::string& text) const {
    const auto path = folder_.path() / "config.yaml";
    std::ofstream(path) << text;
    return load_accelerate_config(path.string());
  }
  std::string error_of(const std::string& text) const {
    try {
      load(text);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kConfig);
      return error.what();
    }
    return "";
  }
  test::TemporaryFolder folder_;
};

TEST_F(AccelerateFile, MachinesAndDevicesAreRead) {
  const AccelerateConfig config = load(
      "distributed_type: MULTI_GPU\nnum_processes: 4\nnum_machines: 2\nmachine_rank: 1\nmain_process_ip: 10.0.0.5\n"
      "main_process_port: 29511\ngpu_ids: 0, 3\nsame_network: yes\n");
  EXPECT_EQ(config.runs, AccelerateConfig::Runs::kOnDevices);
  EXPECT_EQ(config.num_processes, 4);
  EXPECT_EQ(config.num_machines, 2);
  EXPECT_EQ(config.machine_rank, 1);
  EXPECT_EQ(config.main_process_ip, "10.0.0.5");
  EXPECT_EQ(config.main_process_port, 29511);
  EXPECT_TRUE(config.same_network);
  EXPECT_THAT(config.gpu_ids, ElementsAre("0", "3"));
  EXPECT_EQ(config.variables.at("CUDA_VISIBLE_DEVICES"), "0,3");
}

TEST_F(AccelerateFile, ProcessesThatItDoesNotCountAreLeftToTheCommandLine) {
  EXPECT_EQ(load("distributed_type: DEEPSPEED\n").num_processes, std::nullopt);
  EXPECT_EQ(load("distributed_type: DEEPSPEED\nnum_processes: -1\n").num_processes, std::nullopt);
  EXPECT_EQ(load("distributed_type: 'NO'\n").num_processes, 1);
}

// accelerate/utils/dataclasses.py and state.py read these; accelerate/commands/launch.py sets neither from a file.
TEST_F(AccelerateFile, WhatAcceleratesLauncherLosesOnTheWayIsToldToTheProgram) {
  const AccelerateConfig config = load(
      "distributed_type: DEEPSPEED\nnum_processes: 2\nenable_cpu_affinity: true\ndeepspeed_config: {zero_stage: 3, "
      "offload_param_device: nvme, offload_param_nvme_path: /scratch}\n");
  EXPECT_EQ(config.variables.at("ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH"), "/scratch");
  EXPECT_EQ(config.variables.at("ACCELERATE_CPU_AFFINITY"), "1");
}

TEST_F(AccelerateFile, InitAtAnotherStageIsAWarningWithItsPlace) {
  const auto config =
      load("distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 2\n  zero3_init_flag: true\n");
  ASSERT_EQ(config.warnings.size(), 1u);
  EXPECT_THAT(config.warnings[0], HasSubstr("config.yaml:4:3"));
}

TEST_F(AccelerateFile, UnknownKeysAreRefusedWithTheNearestName) {
  const std::string error = error_of("distributed_type: 'NO'\nnum_proceses: 2\n");
  EXPECT_THAT(error, HasSubstr("did you mean 'num_processes'?"));
  EXPECT_THAT(error, HasSubstr("config.yaml:2:1"));
  EXPECT_THAT(error_of("distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stag: 2}\n"),
              HasSubstr("did you mean 'zero_stage'?"));
}

struct Refused {
  const char* text;
  const char* why;
};

TEST_F(AccelerateFile, WhatContradictsItselfOrIsNotThereIsRefusedByName) {
  const Refused cases[] = {
      {"num_processes: 2\n", "no distributed_type"},
      {"distributed_type: MULTI_GPUS\n", "did you mean 'MULTI_GPU'?"},
      {"distributed_type: FSDP\n", "which Tessera does not run"},
      {"distributed_type: 'NO'\ncompute_environment: AMAZON_SAGEMAKER\n", "AMAZON_SAGEMAKER"},
      {"distributed_type: DEEPSPEED\nfsdp_config: {fsdp_version: 2}\n", "'fsdp_config' is given"},
      {"distributed_type: 'NO'\ntpu_use_cluster: true\n", "'tpu_use_cluster' is true"},
      {"distributed_type: 'NO'\nmixed_precision: fp8\n", "no fp8"},
      {"distributed_type: 'NO'\nmixed_precision: bf61\n", "did you mean 'bf16'?"},
      {"distributed_type: 'NO'\nnum_machines: many\n", "use a whole number"},
      {"distributed_type: DEEPSPEED\nnum_processes: 3\nnum_machines: 2\nmain_process_ip: a\nmain_process_port: 1\n",
       "do not divide"},
      {"distributed_type: MULTI_GPU\nnum_processes: 4\nnum_machines: 2\nmain_process_port: 1\n",
       "needs main_process_ip"},
      {"distributed_type: MULTI_GPU\nnum_processes: 4\nnum_machines: 2\nmain_process_ip: a\n",
       "needs main_process_port"},
      {"distributed_type: MULTI_GPU\nnum_processes: 4\nmachine_rank: 1\n", "'machine_rank' is 1"},
      {"distributed_type: MULTI_GPU\nnum_processes: 2\ngpu_ids: '0'\n", "has 1 device"},
      {"distributed_type: MULTI_GPU\nnum_processes: 3\ngpu_ids: 0,1\n", "3 processes of a machine have 2 devices"},
      {"distributed_type: MULTI_GPU\nnum_processes: 2\ngpu_ids: 0,0\n", "each device once"},
      {"distributed_type: MULTI_GPU\nuse_cpu: true\n", "'use_cpu' is true"},
      {"distributed_type: MULTI_CPU\ndeepspeed_config: {zero_stage: 2}\n", "is not 'DEEPSPEED'"},
      {"distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 4}\n", "use 0, 1, 2 or 3"},
      {"distributed_type: DEEPSPEED\ndeepspeed_config: {offload_param_device: nvme}\n", "without a folder"},
      {"distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: nowhere.json}\n", "there is no file"},
      {"distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: /dev/null, zero_stage: 2}\n",
       "'zero_stage' and 'deepspeed_config_file' are both given"},
      {"distributed_type: DEEPSPEED\nmixed_precision: bf16\ndeepspeed_config: {deepspeed_config_file: /dev/null}\n",
       "'mixed_precision' and 'deepspeed_config_file' are both given"},
      {"distributed_type: DEEPSPEED\nnum_processes: 4\nnum_machines: 2\nmain_process_ip: a\nmain_process_port: 1\n",
       "needs deepspeed_hostfile"},
      {"distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_inclusion_filter: a, deepspeed_exclusion_filter: "
       "b}\n",
       "both an inclusion and an exclusion filter"},
  };
  for (const auto& [text, why] : cases) EXPECT_THAT(error_of(text), HasSubstr(why)) << text;
}

}  // namespace
}  // namespace tessera::launch::accelerate_config_test
