#include "tessera/plan/deepspeed_estimates.h"

#include <fmt/format.h>

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::plan {
namespace {

constexpr double kGiB = 1 << 30;

int64_t whole(double bytes) { return static_cast<int64_t>(bytes); }

std::vector<DeepSpeedRow> rows_of_stage_2(const DeepSpeedInput& in) {
  const auto gpus = static_cast<double>(in.gpus_per_node);
  const double ranks = gpus * static_cast<double>(in.nodes);
  return {{.offload_optimizer = true,
           .cpu_bytes = whole(in.params * std::max(4 * ranks, 16.0) * in.buffer_factor),
           .gpu_bytes = whole(2 * in.params),
           .options = "offload_optimizer=cpu "},
          {.cpu_bytes = whole(in.params * 4 * gpus * in.buffer_factor),
           .gpu_bytes = whole(2 * in.params) + whole(18 * in.params / ranks),
           .options = "offload_optimizer=none"}};
}

DeepSpeedRow row_of_stage_3(const DeepSpeedInput& in, bool offload_param, bool offload_optimizer, bool zero_init) {
  const auto gpus = static_cast<double>(in.gpus_per_node);
  const double ranks = gpus * static_cast<double>(in.nodes);
  const double share = 1 / static_cast<double>(in.nodes);
  DeepSpeedRow row{.offload_param = offload_param,
                   .offload_optimizer = offload_optimizer,
                   .zero_init = zero_init,
                   .gpu_bytes = whole(4 * in.largest_layer_params)};
  if (offload_optimizer) {
    const double state = offload_param ? 18 : 16;
    row.cpu_bytes = whole((zero_init ? in.params * state * share : in.params * std::max(4 * gpus, state * share)) *
                          in.buffer_factor);
    if (!offload_param) row.gpu_bytes += whole(2 * in.params / ranks);
  } else {
    row.cpu_bytes = whole((zero_init ? in.largest_layer_params : in.params) * 4 * gpus * in.buffer_factor);
    row.gpu_bytes += whole(18 * in.params / ranks);
  }
  const auto place = [](bool on_cpu) { return on_cpu ? "cpu " : "none"; };
  row.options = fmt::format("offload_param={}, offload_optimizer={}, zero_init={}", place(offload_param),
                            place(offload_optimizer), zero_init ? 1 : 0);
  return row;
}

}  // namespace

std::vector<DeepSpeedRow> deepspeed_rows(int stage, const DeepSpeedInput& input) {
  TESSERA_INVARIANT(stage == 2 || stage == 3);
  if (stage == 2) return rows_of_stage_2(input);
  std::vector<DeepSpeedRow> rows;
  for (const auto& [offload_param, offload_optimizer] : {std::pair(true, true), {false, true}, {false, false}}) {
    for (const bool zero_init : {true, false}) {
      rows.push_back(row_of_stage_3(input, offload_param, offload_optimizer, zero_init));
    }
  }
  return rows;
}

std::string deepspeed_table(int stage, const DeepSpeedInput& input) {
  const auto millions = [](double params) { return fmt::format("{}M", whole(params / 1e6)); };
  std::string text = fmt::format(
      "Estimated memory needed for params, optim states and gradients for a:\n"
      "HW: Setup with {} {}, {} {} per node.\n"
      "SW: Model with {} total params{}.\n"
      "  per CPU  |  per GPU |   Options\n",
      input.nodes, input.nodes > 1 ? "nodes" : "node", input.gpus_per_node, input.gpus_per_node > 1 ? "GPUs" : "GPU",
      millions(input.params),
      stage == 3 ? fmt::format(", {} largest layer params", millions(input.largest_layer_params)) : "");
  for (const DeepSpeedRow& row : deepspeed_rows(stage, input)) {
    text += fmt::format(" {:7.2f}GB | {:6.2f}GB | {}\n", static_cast<double>(row.cpu_bytes) / kGiB,
                        static_cast<double>(row.gpu_bytes) / kGiB, row.options);
  }
  return text;
}

}  // namespace tessera::plan
