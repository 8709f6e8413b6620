// Against DeepSpeed 0.19.8's estimate_zero2_model_states_mem_needs and estimate_zero3_model_states_mem_needs, whose
// return values (bytes a CPU, bytes a GPU) were recorded by calling the package.
#include "tessera/plan/deepspeed_estimates.h"

#include <gtest/gtest.h>

#include <utility>

namespace tessera::plan::deepspeed_estimates_test {
namespace {

using Bytes = std::pair<int64_t, int64_t>;

struct Recorded {
  DeepSpeedInput input;
  std::vector<Bytes> stage_2;
  std::vector<Bytes> stage_3;
};

const Recorded kRecorded[] = {
    {{2783000000, 65000000, 1, 1},
     {{66792000000, 5566000000}, {16698000000, 55660000000}},
     {{75141000000, 260000000},
      {75141000000, 260000000},
      {66792000000, 5826000000},
      {66792000000, 5826000000},
      {390000000, 50354000000},
      {16698000000, 50354000000}}},
    {{2783000000, 65000000, 2, 8},
     {{267168000000, 5566000000}, {133584000000, 8696875000}},
     {{37570500000, 260000000},
      {133584000000, 260000000},
      {33396000000, 607875000},
      {133584000000, 607875000},
      {3120000000, 3390875000},
      {133584000000, 3390875000}}},
    {{109514298, 23471418, 1, 4},
     {{2628343152, 219028596}, {2628343152, 711842937}},
     {{2956886046, 93885672},
      {2956886046, 93885672},
      {2628343152, 148642821},
      {2628343152, 148642821},
      {563314032, 586700013},
      {2628343152, 586700013}}},
    // A third is no binary fraction: the order of the multiplications shows in the last byte.
    {{7000000000, 131072000, 3, 5},
     {{630000000000, 14000000000}, {210000000000, 22400000000}},
     {{63000000000, 524288000},
      {210000000000, 524288000},
      {55999999999, 1457621333},
      {210000000000, 1457621333},
      {3932160000, 8924288000},
      {210000000000, 8924288000}}},
    {{22713216, 11720448, 1, 2},
     {{545117184, 45426432}, {272558592, 249845376}},
     {{613256832, 46881792},
      {613256832, 46881792},
      {545117184, 69595008},
      {545117184, 69595008},
      {140645376, 251300736},
      {272558592, 251300736}}},
};

std::vector<Bytes> bytes_of_rows(int stage, const DeepSpeedInput& input) {
  std::vector<Bytes> bytes;
  for (const DeepSpeedRow& row : deepspeed_rows(stage, input)) bytes.emplace_back(row.cpu_bytes, row.gpu_bytes);
  return bytes;
}

TEST(DeepSpeedEstimates, EveryRowIsDeepSpeedsToTheByte) {
  for (const Recorded& recorded : kRecorded) {
    EXPECT_EQ(bytes_of_rows(2, recorded.input), recorded.stage_2) << recorded.input.params;
    EXPECT_EQ(bytes_of_rows(3, recorded.input), recorded.stage_3) << recorded.input.params;
  }
}

// The table of bigscience/T0_3B in Hugging Face's guide to DeepSpeed, here with its exact counts.
TEST(DeepSpeedEstimates, TheTableOfTheGuideComesOutLetterForLetter) {
  EXPECT_EQ(deepspeed_table(3, {.params = 2783959040, .largest_layer_params = 65798144}),
            "Estimated memory needed for params, optim states and gradients for a:\n"
            "HW: Setup with 1 node, 1 GPU per node.\n"
            "SW: Model with 2783M total params, 65M largest layer params.\n"
            "  per CPU  |  per GPU |   Options\n"
            "   70.00GB |   0.25GB | offload_param=cpu , offload_optimizer=cpu , zero_init=1\n"
            "   70.00GB |   0.25GB | offload_param=cpu , offload_optimizer=cpu , zero_init=0\n"
            "   62.23GB |   5.43GB | offload_param=none, offload_optimizer=cpu , zero_init=1\n"
            "   62.23GB |   5.43GB | offload_param=none, offload_optimizer=cpu , zero_init=0\n"
            "    0.37GB |  46.91GB | offload_param=none, offload_optimizer=none, zero_init=1\n"
            "   15.56GB |  46.91GB | offload_param=none, offload_optimizer=none, zero_init=0\n");
}

TEST(DeepSpeedEstimates, TheTableOfStage2CountsNodesAndGpus) {
  EXPECT_EQ(deepspeed_table(2, {.params = 2783000000, .nodes = 2, .gpus_per_node = 8}),
            "Estimated memory needed for params, optim states and gradients for a:\n"
            "HW: Setup with 2 nodes, 8 GPUs per node.\n"
            "SW: Model with 2783M total params.\n"
            "  per CPU  |  per GPU |   Options\n"
            "  248.82GB |   5.18GB | offload_optimizer=cpu \n"
            "  124.41GB |   8.10GB | offload_optimizer=none\n");
}

}  // namespace
}  // namespace tessera::plan::deepspeed_estimates_test
