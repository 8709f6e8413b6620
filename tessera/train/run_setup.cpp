#include "tessera/train/run_setup.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/data/reader.h"
#include "tessera/models/pretrained_weights.h"

namespace tessera::train {
namespace fs = std::filesystem;

namespace {

// What config.json may call a model whose weights masked-language-model training begins from.
const std::vector<std::string> kMaskedLmArchitectures = {"BertForMaskedLM", "BertForPreTraining", "BertModel"};

void check_task(const config::RunFile& run) {
  if (run.task == "mlm") return;
  throw Error(ErrorKind::kConfig, {fmt::format("unknown task '{}'", run.task), run.name + ", task", "use mlm"});
}

void check_architecture(const config::RunFile& run) {
  const std::string path = run.model.path + "/config.json";
  std::ifstream file(path);
  const auto json = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  const auto names = json.is_object() ? json.find("architectures") : json.end();
  if (!json.is_object() || names == json.end() || !names->is_array()) return;
  std::vector<std::string> given;
  for (const auto& name : *names) given.push_back(name.is_string() ? name.get<std::string>() : name.dump());
  const bool fits = std::any_of(given.begin(), given.end(), [](const std::string& name) {
    return std::find(kMaskedLmArchitectures.begin(), kMaskedLmArchitectures.end(), name) !=
           kMaskedLmArchitectures.end();
  });
  if (fits || given.empty()) return;
  throw Error(
      ErrorKind::kData,
      {fmt::format("the model is a {}, but the task mlm trains a BertForMaskedLM", fmt::join(given, ", ")), path,
       fmt::format("use a folder with one of these: {}; other tasks are not supported yet",
                   fmt::join(kMaskedLmArchitectures, ", "))});
}

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

models::BertConfig read_model_config(const config::RunFile& run) {
  models::BertConfig config = models::read_bert_config(run.model.path);
  if (run.model.dropout) {
    config.hidden_dropout_prob = *run.model.dropout;
    config.attention_probs_dropout_prob = *run.model.dropout;
  }
  return config;
}

std::unique_ptr<data::Tokenizer> load_tokenizer_of(const config::RunFile& run, const models::BertConfig& model) {
  auto tokenizer = data::load_tokenizer(run.tokenizer);
  if (tokenizer->vocab_size() > model.vocab_size) {
    throw Error(ErrorKind::kData, {fmt::format("the tokenizer has {} tokens, but the model only {}",
                                               tokenizer->vocab_size(), model.vocab_size),
                                   fmt::format("{} and {}/config.json", run.tokenizer, run.model.path),
                                   "use the tokenizer that belongs to the model"});
  }
  if (run.data.max_length > model.max_position_embeddings) {
    throw Error(ErrorKind::kConfig, {fmt::format("data.max_length is {}, but the model takes at most {}",
                                                 run.data.max_length, model.max_position_embeddings),
                                     run.name, fmt::format("use at most {}", model.max_position_embeddings)});
  }
  return tokenizer;
}

config::DsConfigInput ds_config_input(const models::BertConfig& model, int64_t ranks) {
  config::DsConfigInput input{.data_parallel_size = ranks, .may_lower_micro_batch = true};
  input.auto_values.hidden_size = model.hidden_size;
  input.auto_values.leave_unknown = true;
  return input;
}

int64_t steps_of_run(const config::RunFile& run, int64_t steps_per_epoch) {
  if (run.training.max_steps > 0) return run.training.max_steps;
  return std::max<int64_t>(1, std::llround(std::ceil(run.training.epochs * static_cast<double>(steps_per_epoch))));
}

void set_defaults_of_training(config::DsConfig& config) {
  if (!config.own.lazy_publish) config.own.lazy_publish = true;  // nobody but forwards and checkpoints reads parameters
}

plan::TrainingSetup memory_setup(const config::RunFile& run, const config::DsConfig& config, int64_t ranks) {
  plan::TrainingSetup setup = plan::setup_of(config, ranks);
  setup.length = run.data.max_length;
  setup.target_share = run.data.mlm_probability;
  setup.activation_checkpointing = run.training.activation_checkpointing;
  return setup;
}

plan::ModelCensus memory_census(const config::RunFile& run, const models::BertConfig& model) {
  plan::ModelCensus census = plan::read_census(run.model.path);
  census.architecture->hidden_dropout = model.hidden_dropout_prob;
  census.architecture->attention_dropout = model.attention_probs_dropout_prob;
  return census;
}

std::string swap_folder(const config::RunFile& run, const config::DsConfig& config) {
  const config::ZeroOptions& zero = config.zero;
  if (zero.offload_param.device == "nvme") return zero.offload_param.nvme_path;
  if (zero.offload_optimizer.device == "nvme") return zero.offload_optimizer.nvme_path;
  return run.output;
}

void check_run(const config::RunFile& run, int64_t ranks) {
  check_task(run);
  check_model_folder(run);
  const models::BertConfig model = read_model_config(run);
  check_architecture(run);
  if (run.model.init == config::RunFile::Model::Init::kPretrained) models::PretrainedWeights(run.model.path, "bert.");
  load_tokenizer_of(run, model);
  config::require_supported(config::resolve_ds_config(run, ds_config_input(model, ranks)));
  check_files("data.train", run.data.train);
  check_files("data.eval", run.data.eval);
}

}  // namespace tessera::train
