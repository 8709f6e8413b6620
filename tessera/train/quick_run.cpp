#include "tessera/train/quick_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tessera/base/atomic_file.h"
#include "tessera/base/error.h"
#include "tessera/config/yaml_file.h"
#include "tessera/models/model.h"
#include "tessera/train/tasks.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr int64_t kLongest = 1024;       // tokens of a sample, where the model takes more
constexpr int64_t kBatch = 16;           // samples of a step
constexpr double kRateOfAdapter = 2e-4;  // LoRA's matrices bear ten times the rate of a model's own
constexpr double kRateOfModel = 2e-5;

void require(bool given, const char* option) {
  if (given) return;
  throw Error(ErrorKind::kUsage, {fmt::format("{} is missing", option), "tessera train",
                                  "without a run file --model, --task and --data are needed"});
}

ordered_json absolute_paths(const std::vector<std::string>& paths) {
  ordered_json all = ordered_json::array();
  for (const std::string& path : paths) all.push_back(fs::absolute(path).lexically_normal().string());
  return all.size() == 1 ? all[0] : all;
}

// Whether the weights are 16 bits wide: config.json says so under its new or its old name.
bool is_16_bit(const models::ModelConfig& config) {
  const auto& values = config.values;
  for (const char* const key : {"dtype", "torch_dtype"}) {
    const auto found = values.find(key);
    if (found != values.end() && found->is_string()) return *found == "bfloat16" || *found == "float16";
  }
  return false;
}

}  // namespace

std::string quick_run_text(const QuickRun& asked) {
  if (asked.model.empty() && asked.task.empty() && asked.data.empty()) {
    throw Error(ErrorKind::kUsage, {"no run file is named", "tessera train",
                                    "name one, or all of --model, --task and --data; see 'tessera train --help'"});
  }
  require(!asked.model.empty(), "--model");
  require(!asked.task.empty(), "--task");
  require(!asked.data.empty(), "--data");
  const TaskType& task = tasks().table().find(asked.task, "--task", ErrorKind::kUsage).make;
  const models::FolderModel found = models::read_model(asked.model, task.head, "the task " + asked.task + " trains");
  const int64_t most = found.model->max_positions();

  ordered_json run;
  run["model"]["path"] = fs::absolute(asked.model).lexically_normal().string();
  run["task"] = asked.task;
  if (asked.lora > 0) run["adapter"]["rank"] = asked.lora;
  run["data"]["train"] = absolute_paths(asked.data);
  if (!asked.eval.empty()) run["data"]["eval"] = absolute_paths(asked.eval);
  run["data"]["max_length"] = most > 0 ? std::min(most, kLongest) : kLongest;
  run["data"]["padding"] = "longest";
  run["training"] = {{"epochs", 1}, {"keep_last", 1}};
  ordered_json& deepspeed = run["deepspeed"];
  deepspeed["train_batch_size"] = kBatch;
  deepspeed["train_micro_batch_size_per_gpu"] = 1;
  deepspeed["zero_optimization"]["stage"] = 3;
  if (is_16_bit(models::read_model_config(asked.model))) deepspeed["bf16"]["enabled"] = true;
  deepspeed["gradient_clipping"] = 1.0;
  const double rate = (asked.lora > 0 ? kRateOfAdapter : kRateOfModel) * task.rate_share;
  deepspeed["optimizer"] = {{"type", "AdamW"}, {"params", {{"lr", rate}, {"weight_decay", 0.0}}}};
  deepspeed["scheduler"] = {{"type", "cosine"}, {"params", {{"num_training_steps", "auto"}}}};
  run["output"] = fs::absolute(asked.output).lexically_normal().string();
  return config::to_yaml(run);
}

std::string write_quick_run(const QuickRun& asked, bool prints) {
  const std::string text = quick_run_text(asked);
  const std::string path = (fs::path(asked.output) / "run.yaml").string();
  std::error_code failed;
  fs::create_directories(asked.output, failed);
  if (failed) {
    throw Error(ErrorKind::kMachine, {"the output folder cannot be created: " + failed.message(), asked.output,
                                      "choose another with --output"});
  }
  write_file_atomically(path, text);
  if (prints) fmt::print("# {}\n{}\n", path, text);
  std::fflush(stdout);
  return path;
}

}  // namespace tessera::train
