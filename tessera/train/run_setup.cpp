#include "tessera/train/run_setup.h"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/data/reader.h"
#include "tessera/engine/traffic.h"
#include "tessera/layout/range.h"
#include "tessera/models/freezing.h"
#include "tessera/models/model.h"
#include "tessera/models/quantized_model.h"
#include "tessera/models/sequence_classifier.h"
#include "tessera/monitor/monitors.h"
#include "tessera/pipeline/schedule.h"
#include "tessera/train/evaluation.h"
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

// Its loss is that of the network alone.
bool has_loss_of_network(const TaskType& task) { return task.loss == nullptr && task.start == nullptr; }

void check_texts_to_write(const config::RunFile& run, const TaskType& task) {
  if (run.training.eval_bleu == 0) return;
  const auto refuse = [&](const std::string& what, const char* fix) {
    throw Error(ErrorKind::kConfig, {"'training.eval_bleu' " + what, run.name, fix});
  };
  if (!task.writes_texts) refuse(fmt::format("scores texts, and the task {} writes none", run.task), "leave it out");
  if (run.data.eval.empty() && run.data.eval_share == 0) {
    refuse("is of what is held out, and there is neither data.eval nor data.eval_share", "name some, or leave it out");
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
  return models::AdapterOptions{.lora = {.rank = asked.rank,
                                         .alpha = asked.alpha,
                                         .dropout = asked.dropout,
                                         .rank_stabilized = asked.use_rslora,
                                         .dora = asked.use_dora},
                                .targets = asked.targets,
                                .modules_to_save = asked.modules_to_save};
}

nlohmann::ordered_json config_of_labels(const config::RunFile& run) {
  const bool has_labels = task_of(run).labels != nullptr && !run.data.labels.empty();
  return has_labels ? models::config_of_labels(run.data.labels) : nlohmann::ordered_json::object();
}

models::FolderModel read_model_of(const config::RunFile& run) {
  const TaskType& task = task_of(run);
  auto found = models::read_model(run.model.path, task.head, "the task " + run.task + " trains", config_of_labels(run));
  if (run.model.dropout || task.without_dropout) found.model->set_dropout(run.model.dropout.value_or(0));
  found.model->set_router_losses(run.model.router_balance_loss, run.model.router_z_loss);
  if (const auto adapter = adapter_of(run)) {
    found.model = models::with_adapter(std::move(found.model), *adapter, run.name + ", adapter");
  }
  if (!run.model.freeze.empty()) {
    if (adapter_of(run)) {
      throw Error(ErrorKind::kConfig, {"'model.freeze' freezes parts of a model that an adapter freezes as a whole",
                                       run.name, "leave one of them out"});
    }
    found.model = models::with_frozen(std::move(found.model), run.model.freeze, run.name + ", model.freeze");
  }
  if (run.model.quantization == config::RunFile::Model::Quantization::kNf4) {
    found.model = models::with_nf4_weights(std::move(found.model), run.name + ", model.quantization");
  }
  return found;
}

std::unique_ptr<data::Tokenizer> load_tokenizer_of(const config::RunFile& run, const models::Model& model) {
  auto tokenizer = data::load_tokenizer(run.tokenizer);
  data::require_vocabulary(*tokenizer, run.tokenizer, model.vocab_size(), run.model.path + "/config.json");
  const int64_t most = model.max_positions();
  if (most > 0 && run.data.max_length > most) {
    throw Error(ErrorKind::kConfig,
                {fmt::format("data.max_length is {}, but the model takes at most {}", run.data.max_length, most),
                 run.name, fmt::format("use at most {}", most)});
  }
  return tokenizer;
}

layout::MeshShape mesh_shape_of(const config::RunFile& run, int64_t ranks) {
  const auto world = static_cast<int>(ranks);
  const auto tensor = static_cast<int>(run.parallel.tensor), pipeline = static_cast<int>(run.parallel.pipeline);
  const auto context = static_cast<int>(run.parallel.context), expert = static_cast<int>(run.parallel.expert);
  const auto replicate = static_cast<int>(run.parallel.replicate);
  std::vector<layout::Axis> axes{{layout::kShardAxis, 0}};
  if (replicate > 1) axes.insert(axes.begin(), {layout::kReplicateAxis, replicate});
  if (pipeline > 1) axes.insert(axes.begin(), {layout::kPipelineAxis, pipeline});
  if (expert > 1) axes.push_back({layout::kExpertAxis, expert});
  if (context > 1) axes.push_back({layout::kContextAxis, context});
  if (tensor > 1) axes.push_back({layout::kTensorAxis, tensor});
  if (axes.size() == 1) return layout::MeshShape::of_data_parallel(world);
  return layout::MeshShape::of_world(world, std::move(axes), run.name + ", parallel");
}

std::string ranks_in_words(const layout::MeshShape& mesh) {
  const std::string ranks = count_of(mesh.ranks(), "rank");
  return mesh.axes().size() == 1 ? ranks : fmt::format("{}: {}", ranks, mesh.product());
}

config::DsConfigInput ds_config_input(const models::Model& model, int64_t data_ranks) {
  config::DsConfigInput input{.data_parallel_size = data_ranks, .may_lower_micro_batch = true};
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

plan::TrainingSetup memory_setup(const config::RunFile& run, const config::DsConfig& config, int64_t data_ranks) {
  plan::TrainingSetup setup = plan::setup_of(config, data_ranks);
  setup.length = layout::ceil_div(run.data.max_length, run.parallel.context);
  setup.tensor_ranks = run.parallel.tensor;
  const TaskType& task = task_of(run);
  setup.target_share = task.target_share ? task.target_share(run) : 1;
  setup.micro_batch *= task.rows_of_sample;
  setup.activation_checkpointing = run.training.activation_checkpointing;
  return setup;
}

plan::ModelCensus census_of_whole(const config::RunFile& run, const models::FolderModel& model) {
  return models::census_of(*model.model, model.as.name, run.model.path + "/config.json");
}

plan::ModelCensus memory_census(const config::RunFile& run, const models::FolderModel& model,
                                const layout::MeshShape& mesh, const std::optional<models::StageBounds>& stages) {
  const models::PartRanks ranks{.tensor = mesh.size(layout::kTensorAxis), .expert = mesh.size(layout::kExpertAxis)};
  const std::string where = run.model.path + "/config.json";
  if (stages) return models::census_of_stages(*model.model, model.as.name, where, ranks, *stages);
  return models::census_of(*model.model, model.as.name, where, ranks);
}

std::optional<models::StageBounds> stages_of(const config::RunFile& run, const models::FolderModel& model,
                                             const layout::MeshShape& mesh, const config::BatchSizes& batch,
                                             const std::vector<double>& seconds) {
  const int ranks = mesh.size(layout::kPipelineAxis);
  if (ranks == 1 && !run.parallel.stage_sizes.empty()) {
    throw Error(ErrorKind::kConfig, {"there are sizes of stages, and no pipeline", run.name + ", parallel.stage_sizes",
                                     "set parallel.pipeline, or leave them out"});
  }
  if (ranks == 1) return std::nullopt;
  const auto refuse = [&](const std::string& what, const std::string& fix) {
    throw Error(ErrorKind::kConfig, {what, run.name + ", parallel.pipeline", fix});
  };
  const TaskType& task = task_of(run);
  if (!has_loss_of_network(task)) {
    refuse(fmt::format("the task {} does not train over a pipeline yet", run.task), "leave parallel.pipeline out");
  }
  if (run.training.eval_bleu > 0) {
    refuse("training.eval_bleu writes texts, which a model over a pipeline does not do yet",
           "leave one of them out; tessera generate writes texts by the checkpoint");
  }
  const auto network = model.model->network();
  const auto links = static_cast<int>(network->links().size());
  if (links == 0) {
    refuse(fmt::format("{} cannot be cut into a pipeline yet", model.as.name), "leave parallel.pipeline out");
  }
  const pipeline::Schedule schedule =
      pipeline::make_schedule(run.parallel.schedule,
                              {.ranks = ranks,
                               .micro_batches = static_cast<int>(batch.accumulation),
                               .stages_per_rank = static_cast<int>(run.parallel.stages_per_rank)},
                              run.name + ", parallel");
  if (schedule.stages() > links) {
    refuse(fmt::format("{} stages are more than the model can be cut into: its embeddings, {} and its head",
                       schedule.stages(), count_of(links - 2, "layer")),
           fmt::format("use at most {} ranks", links / (schedule.stages() / ranks)));
  }
  const bool by_hand = !run.parallel.stage_sizes.empty();
  return models::partitioned_stages(
      *network, {.by = run.parallel.partition, .seconds = seconds, .sizes = run.parallel.stage_sizes}, schedule,
      task.target_share ? task.target_share(run) : 1,
      run.name + (by_hand ? ", parallel.stage_sizes" : ", parallel.partition"));
}

std::string swap_folder(const config::RunFile& run, const config::DsConfig& config) {
  const config::ZeroOptions& zero = config.zero;
  if (zero.offload_param.device == "nvme") return zero.offload_param.nvme_path;
  if (zero.offload_optimizer.device == "nvme") return zero.offload_optimizer.nvme_path;
  return run.output;
}

namespace {

int64_t bytes_of_element(const config::Dtypes& dtypes) {
  return dtypes.autocast.value_or(dtypes.compute) == config::Dtype::kFp32 ? 4 : 2;
}

}  // namespace

std::optional<SharedSequences> shared_sequences_of(const config::RunFile& run, const models::FolderModel& model,
                                                   const config::DsConfig& config, const layout::MeshShape& mesh,
                                                   bool on_gpus) {
  const int context_ranks = mesh.size(layout::kContextAxis);
  if (context_ranks == 1) return std::nullopt;
  if (!has_loss_of_network(task_of(run))) {
    throw Error(ErrorKind::kConfig, {fmt::format("the task {} does not share sequences between ranks yet", run.task),
                                     run.name + ", parallel.context", "leave parallel.context out"});
  }
  model.model->network()->share_sequences(nn::ContextAxis::of_size(context_ranks));
  const std::optional<models::Architecture> sizes = model.model->architecture();
  TESSERA_INVARIANT(sizes.has_value());  // of every model whose sequences can be shared
  SharedSequences result{.heads = {.heads = sizes->heads,
                                   .key_heads = sizes->kv_heads,
                                   .tensor_ranks = mesh.size(layout::kTensorAxis),
                                   .context_ranks = context_ranks,
                                   .element_size = bytes_of_element(config.dtypes)},
                         .head_size = sizes->head_size,
                         .layers = sizes->layers};
  if (on_gpus) result.heads.why_no_ring = "it runs on CPUs alone so far";
  if (sizes->attention_dropout > 0)
    result.heads.why_no_ring = "the model drops weights of its attention (set model.dropout to 0)";
  std::optional<nn::ContextAttention> asked;
  if (run.parallel.context_attention == "ring") asked = nn::ContextAttention::kRing;
  if (run.parallel.context_attention == "ulysses") asked = nn::ContextAttention::kUlysses;
  result.attention = nn::context_attention_of(result.heads, asked, run.name + ", parallel");
  return result;
}

std::string SharedSequences::in_words() const {
  const auto bytes = [this](nn::ContextAttention by) {
    const double features = static_cast<double>(head_size * layers);
    return format_bytes(static_cast<uint64_t>(std::llround(nn::bytes_sent_for_token(by, heads) * features)));
  };
  return fmt::format("{}: a rank sends {} for each of its tokens", nn::name_of(attention), bytes(attention));
}

namespace {

void check_evaluations(const config::RunFile& run) {
  const config::RunFile::Training& training = run.training;
  if (training.best_by.empty() && training.patience == 0) return;
  if (run.data.eval.empty() && run.data.eval_share == 0) {
    const char* const key = training.best_by.empty() ? "training.patience" : "training.best_by";
    throw Error(ErrorKind::kConfig,
                {fmt::format("'{}' compares evaluations, and there is nothing to evaluate on", key), run.name,
                 "name held-out data with data.eval, or a share of data.train with data.eval_share"});
  }
  if (!training.best_by.empty())
    find_metric(all_metrics(metrics_of(run)), training.best_by, run.name + ", training.best_by");
}

// A block that is named after a task is of that task alone.
void refuse_keys_of_other_tasks(const config::RunFile& run) {
  const auto* const own = tasks().table().lookup(run.task);
  for (const config::ResolvedKey& key : run.keys) {
    const std::string block = key.path.substr(0, key.path.find('.'));
    const auto* const of_block = tasks().table().lookup(block);
    if (!key.given || of_block == nullptr || of_block == own) continue;
    throw Error(ErrorKind::kConfig,
                {fmt::format("'{}' is of the task {}, and the run's task is {}", key.path, block, run.task), key.where,
                 "leave it out"});
  }
}

// What says how a pipeline runs says nothing where there is none; a key at its default may stay.
void refuse_keys_without_a_pipeline(const config::RunFile& run) {
  if (run.parallel.pipeline > 1) return;
  const config::RunFile::Parallel none;
  const auto refuse_if = [&](bool differs, const std::string& path) {
    if (!differs) return;
    throw Error(ErrorKind::kConfig, {fmt::format("'{}' is of a pipeline, and parallel.pipeline is 1", path), run.name,
                                     "set parallel.pipeline, or leave it out"});
  };
  refuse_if(run.parallel.schedule != none.schedule, "parallel.schedule");
  refuse_if(run.parallel.stages_per_rank != none.stages_per_rank, "parallel.stages_per_rank");
  refuse_if(run.parallel.partition != none.partition, "parallel.partition");
}

}  // namespace

std::vector<Metric> metrics_of(const config::RunFile& run) {
  const TaskType& task = task_of(run);
  return task.metrics ? task.metrics(run) : std::vector<Metric>();
}

int64_t readers_of(const config::RunFile& run, int64_t ranks) { return mesh_shape_of(run, ranks).readers(); }

config::BatchSizes batch_of(const config::RunFile& run, int64_t ranks) {
  config::RunFile checked = run;
  checked.data.labels.clear();  // which the batch does not depend on
  return config::resolve_ds_config(run, ds_config_input(*read_model_of(checked).model, readers_of(run, ranks))).batch;
}

config::RunFile check_run(const config::RunFile& run, int64_t ranks) {
  const TaskType& task = task_of(run);
  refuse_keys_of_other_tasks(run);
  refuse_keys_without_a_pipeline(run);
  check_texts_to_write(run, task);
  if (!task.keeps_tokens && run.data.cache != "auto" && run.data.cache != "none") {
    throw Error(ErrorKind::kConfig,
                {fmt::format("'data.cache' names a folder, and the task {} keeps its tokens in memory", run.task),
                 run.name, "leave it out"});
  }
  monitor::check_monitors(run.monitors, run.name + ", monitors");
  check_model_folder(run);
  config::RunFile checked = run;
  checked.data.labels.clear();  // as they are not checked yet; the folder's own will do until then
  const models::FolderModel model = read_model_of(checked);
  if (run.model.init == config::RunFile::Model::Init::kPretrained) {
    models::PretrainedWeights(run.model.path, model.model->base_prefix());
  }
  load_tokenizer_of(run, *model.model);
  const layout::MeshShape mesh = mesh_shape_of(run, ranks);
  const config::DsConfig config = config::resolve_ds_config(run, ds_config_input(*model.model, mesh.readers()));
  shared_sequences_of(run, model, config, mesh, run.training.device == "cuda");
  engine::check_traffic(config.zero, mesh);
  if (mesh.holds_parts()) {  // refuses what cannot be cut
    memory_census(checked, model, mesh, stages_of(checked, model, mesh, config.batch));
  }
  config::require_supported(config);
  if (run.parallel.replicate > 1 && config.zero.stage == 0) {
    throw Error(ErrorKind::kConfig,
                {"at ZeRO stage 0 every rank has all training state, so that there are no shards to replicate",
                 run.name + ", parallel.replicate", "set zero_optimization.stage to 1, 2 or 3, or leave it out"});
  }
  check_files("data.train", run.data.train);
  check_files("data.eval", run.data.eval);
  check_evaluations(run);
  checked.data.labels = task.labels == nullptr ? run.data.labels : task.labels(run);
  return checked;
}

}  // namespace tessera::train
