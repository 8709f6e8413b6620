#include "tessera/train/run_setup.h"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>

#include "tessera/base/error.h"
#include "tessera/data/reader.h"
#include "tessera/models/model.h"
#include "tessera/monitor/monitors.h"
#include "tessera/train/run.h"
#include "tessera/train/tasks.h"

namespace tessera::train {
namespace fs = std::filesystem;

namespace {

std::string resolved(const std::string& path) { return fs::absolute(path).lexically_normal().string(); }

void check_model_folder(const config::RunFile& run) {
  if (fs::is_directory(run.model.path)) return;
  throw Error(ErrorKind::kData, {"the model folder does not exist", run.model.path,
                                 "check model.path, which resolves to " + resolved(run.model.path)});
}

void check_files(const std::string& key, const std::vector<std::string>& paths) {
  for (const std::string& path : data::expand_files(paths)) {
    if (!fs::exists(path)) {
      throw Error(ErrorKind::kData,
                  {"no such file", path, fmt::format("check {}, which resolves to {}", key, resolved(path))});
    }
    data::check_file(path);
  }
}

}  // namespace

std::optional<models::AdapterOptions> adapter_of(const config::RunFile& run) {
  const config::RunFile::Adapter& asked = run.adapter;
  if (!asked.path.empty()) {
    models::PeftFolder folder = models::read_peft_folder(asked.path);
    if (asked.rank == 0 || asked.rank == folder.options.lora.rank) return std::move(folder.options);
    throw Error(ErrorKind::kConfig,
                {fmt::format("'adapter.rank' is {}, but the adapter's is {}", asked.rank, folder.options.lora.rank),
                 asked.path, "leave adapter.rank out, or start a new adapter without adapter.path"});
  }
  if (asked.rank == 0) return std::nullopt;
  return models::AdapterOptions{
      .lora = {.rank = asked.rank, .alpha = asked.alpha, .dropout = asked.dropout, .rank_stabilized = asked.use_rslora},
      .targets = asked.targets,
      .modules_to_save = asked.modules_to_save};
}

models::FolderModel read_model_of(const config::RunFile& run) {
  auto found = models::read_model(run.model.path, task_of(run).head, "the task " + run.task + " trains");
  if (run.model.dropout) found.model->set_dropout(*run.model.dropout);
  if (const auto adapter = adapter_of(run)) {
    found.model = models::with_adapter(std::move(found.model), *adapter, run.name + ", adapter");
  }
  return found;
}

std::unique_ptr<data::Tokenizer> load_tokenizer_of(const config::RunFile& run, const models::Model& model) {
  auto tokenizer = data::load_tokenizer(run.tokenizer);
  if (tokenizer->vocab_size() > model.vocab_size()) {
    throw Error(ErrorKind::kData, {fmt::format("the tokenizer has {} tokens, but the model only {}",
                                               tokenizer->vocab_size(), model.vocab_size()),
                                   fmt::format("{} and {}/config.json", run.tokenizer, run.model.path),
                                   "use the tokenizer that belongs to the model"});
  }
  const int64_t most = model.max_positions();
  if (most > 0 && run.data.max_length > most) {
    throw Error(ErrorKind::kConfig,
                {fmt::format("data.max_length is {}, but the model takes at most {}", run.data.max_length, most),
                 run.name, fmt::format("use at most {}", most)});
  }
  return tokenizer;
}

config::DsConfigInput ds_config_input(const models::Model& model, int64_t ranks) {
  config::DsConfigInput input{.data_parallel_size = ranks, .may_lower_micro_batch = true};
  input.auto_values.hidden_size = model.hidden_size();
  input.auto_values.leave_unknown = true;
  return input;
}

int64_t steps_of_run(const config::RunFile& run, int64_t steps_per_epoch) {
  if (run.training.max_steps > 0) return run.training.max_steps;
  constexpr double kMostSteps = 1e15;
  const double steps = std::ceil(run.training.epochs * static_cast<double>(steps_per_epoch));
  if (steps > kMostSteps) {
    throw Error(ErrorKind::kConfig, {fmt::format("{} epochs are more steps than can be counted", run.training.epochs),
                                     run.name + ", training.epochs", "write fewer"});
  }
  return std::max<int64_t>(1, std::llround(steps));
}

void set_defaults_of_training(config::DsConfig& config) {
  if (!config.own.lazy_publish) config.own.lazy_publish = true;  // nobody but forwards and checkpoints reads parameters
}

plan::TrainingSetup memory_setup(const config::RunFile& run, const config::DsConfig& config, int64_t ranks) {
  plan::TrainingSetup setup = plan::setup_of(config, ranks);
  setup.length = run.data.max_length;
  const TaskType& task = task_of(run);
  setup.target_share = task.target_share ? task.target_share(run) : 1;
  setup.activation_checkpointing = run.training.activation_checkpointing;
  return setup;
}

plan::ModelCensus memory_census(const config::RunFile& run, const models::FolderModel& model) {
  return models::census_of(*model.model, model.as.name, run.model.path + "/config.json");
}

std::string swap_folder(const config::RunFile& run, const config::DsConfig& config) {
  const config::ZeroOptions& zero = config.zero;
  if (zero.offload_param.device == "nvme") return zero.offload_param.nvme_path;
  if (zero.offload_optimizer.device == "nvme") return zero.offload_optimizer.nvme_path;
  return run.output;
}

void check_run(const config::RunFile& run, int64_t ranks) {
  task_of(run);
  monitor::check_monitors(run.monitors, run.name + ", monitors");
  check_model_folder(run);
  const models::FolderModel model = read_model_of(run);
  if (run.model.init == config::RunFile::Model::Init::kPretrained) {
    models::PretrainedWeights(run.model.path, model.model->base_prefix());
  }
  load_tokenizer_of(run, *model.model);
  config::require_supported(config::resolve_ds_config(run, ds_config_input(*model.model, ranks)));
  check_files("data.train", run.data.train);
  check_files("data.eval", run.data.eval);
}

}  // namespace tessera::train
