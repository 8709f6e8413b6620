// The tables of DeepSpeed's own estimators (0.19.8, deepspeed/runtime/zero/stage_1_and_2.py
// estimate_zero2_model_states_mem_needs_all_cold and stage3.py estimate_zero3_model_states_mem_needs_all_cold): memory
// for parameters, gradients and Adam's state, without activations, as DeepSpeed counts them. Its formulas, P
// parameters, L those of the largest layer, N = nodes x GPUs, 1.5 = additional_buffer_factor, bytes:
//
//   stage  offload            per CPU                                     per GPU
//   2      optimizer          P max(4N, 16) 1.5                           2P
//   2      none               4P gpus 1.5                                 2P + 18P/N
//   3      both               P 18/nodes 1.5 *                            4L
//   3      optimizer          P 16/nodes 1.5 *                            4L + 2P/N
//   3      none               4L gpus 1.5, without zero_init 4P gpus 1.5  4L + 18P/N
//   * without zero_init P max(4 gpus, the same) 1.5
//
// They differ from memory_model.h, which counts what Tessera keeps: 16 bytes a parameter and no buffers of 4.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::plan {

struct DeepSpeedInput {
  double params = 0;
  double largest_layer_params = 0;  // of the module that itself holds most parameters; stage 3 only
  int64_t nodes = 1;
  int64_t gpus_per_node = 1;
  double buffer_factor = 1.5;  // additional_buffer_factor
};

struct DeepSpeedRow {
  bool offload_param = false;  // stage 3 only
  bool offload_optimizer = false;
  bool zero_init = true;  // stage 3 only
  int64_t cpu_bytes = 0;  // of a node
  int64_t gpu_bytes = 0;  // of a GPU
  std::string options;    // "offload_param=cpu , offload_optimizer=cpu , zero_init=1"
};

// stage 2 or 3; the rows in DeepSpeed's order.
std::vector<DeepSpeedRow> deepspeed_rows(int stage, const DeepSpeedInput& input);

// What DeepSpeed prints, letter for letter.
std::string deepspeed_table(int stage, const DeepSpeedInput& input);

}  // namespace tessera::plan
