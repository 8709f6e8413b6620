#include "tessera/train/run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <thread>

#include "tessera/base/allocator.h"
#include "tessera/base/env.h"
#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/host_memory.h"
#include "tessera/base/log.h"
#include "tessera/checkpoint/export_hf.h"
#include "tessera/comm/rendezvous.h"
#include "tessera/config/run_file.h"
#include "tessera/data/tokenizer.h"
#include "tessera/engine/random_state.h"
#include "tessera/engine/timeline.h"
#include "tessera/plan/memory_check.h"
#include "tessera/storage/cpu_allocator.h"
#include "tessera/storage/device.h"
#include "tessera/train/metrics.h"
#include "tessera/train/trainer.h"

namespace tessera::train {
namespace fs = std::filesystem;

namespace {

void check_run(const config::RunFile& run) {
  if (run.task != "mlm") {
    throw Error(ErrorKind::kConfig,
                {fmt::format("the task '{}' is not known", run.task), run.name + ", task", "use mlm"});
  }
}

models::BertConfig read_model_config(const config::RunFile& run) {
  models::BertConfig config = models::read_bert_config(run.model.path);
  if (run.model.dropout) {
    config.hidden_dropout_prob = *run.model.dropout;
    config.attention_probs_dropout_prob = *run.model.dropout;
  }
  return config;
}

void check_sizes(const config::RunFile& run, const models::BertConfig& model, const data::Tokenizer& tokenizer) {
  if (tokenizer.vocab_size() > model.vocab_size) {
    throw Error(ErrorKind::kData, {fmt::format("the tokenizer knows {} tokens but the model only {}",
                                               tokenizer.vocab_size(), model.vocab_size),
                                   fmt::format("{} and {}/config.json", run.tokenizer, run.model.path),
                                   "use the tokenizer that belongs to the model"});
  }
  if (run.data.max_length > model.max_position_embeddings) {
    throw Error(ErrorKind::kConfig, {fmt::format("data.max_length is {} but the model has positions for {}",
                                                 run.data.max_length, model.max_position_embeddings),
                                     run.name, fmt::format("use at most {}", model.max_position_embeddings)});
  }
}

at::Device device_of(const config::RunFile& run, const comm::Communicator& world) {
  return storage::device_of_rank(run.training.device, world.local_rank(), run.name + ", training.device");
}

// Before anything is allocated; of runs on the CPU, whose memory it knows. All ranks look at what the ranks of their
// host saw, so that they refuse together.
void check_memory(const config::RunFile& run, const models::BertConfig& model, const config::DsConfig& config,
                  comm::Communicator& world) {
  const int64_t limit = config.own.host_memory_limit;
  if (limit > 0) limit_process_memory(static_cast<uint64_t>(limit));
  if (!run.training.memory_check || !device_of(run, world).is_cpu()) return;
  plan::ModelCensus census = plan::read_census(run.model.path);
  census.architecture->hidden_dropout = model.hidden_dropout_prob;
  census.architecture->attention_dropout = model.attention_probs_dropout_prob;
  plan::TrainingSetup setup = plan::setup_of(config, world.size());
  setup.length = run.data.max_length;
  setup.target_share = run.data.mlm_probability;
  setup.activation_checkpointing = run.training.activation_checkpointing;

  const config::ZeroOptions& zero = config.zero;
  const bool swaps_params = zero.offload_param.device == "nvme";
  const std::string& swap = swaps_params ? zero.offload_param.nvme_path : zero.offload_optimizer.nvme_path;
  const bool swaps = swaps_params || zero.offload_optimizer.device == "nvme";
  plan::MachineRoom room = plan::machine_room(swaps ? swap : run.output);
  const std::string host = host_name() + " ";
  int64_t ranks_of_host = 0;
  for (const std::string& seen : world.exchange_texts(host + std::to_string(room.available), "the memory check")) {
    if (!seen.starts_with(host)) continue;
    ++ranks_of_host;
    room.available = std::max<uint64_t>(room.available, std::stoull(seen.substr(host.size())));
  }
  ranks_of_host = std::min(ranks_of_host, env_int("LOCAL_WORLD_SIZE").value_or(ranks_of_host));
  plan::check_fits({.model = census,
                    .setup = setup,
                    .room = room,
                    .ranks_of_host = std::max<int64_t>(1, ranks_of_host),
                    .samples_of_a_rank = config.batch.micro * config.batch.accumulation,
                    .where = run.name});
}

data::TokenizedDataset read_dataset(const config::RunFile& run, const std::vector<std::string>& files,
                                    const data::Tokenizer& tokenizer, int world_size) {
  data::TokenizedDataset dataset(
      tokenizer, {.files = files, .text_column = run.data.text_column, .max_length = run.data.max_length});
  if (dataset.size() < static_cast<size_t>(world_size)) {
    throw Error(ErrorKind::kData, {fmt::format("{} samples are not enough for {} ranks", dataset.size(), world_size),
                                   fmt::format("{}", fmt::join(files, ", ")), "use fewer ranks or more data"});
  }
  return dataset;
}

data::MlmOptions mlm_options(const config::RunFile& run) {
  return {.probability = run.data.mlm_probability,
          .max_length = run.data.max_length,
          .pad_to_max_length = run.data.padding == config::RunFile::Data::Padding::kMaxLength,
          .seed = static_cast<uint64_t>(run.training.seed)};
}

// Values for the model's parameters, and a report of the names that found no partner in the weights' files.
class InitialValues {
 public:
  InitialValues(const config::RunFile& run, const models::BertConfig& config, const models::BertForMaskedLM& model)
      : config_(config), seed_(static_cast<uint64_t>(run.training.seed)) {
    if (run.model.init == config::RunFile::Model::Init::kRandom) return;
    weights_ = std::make_unique<models::PretrainedWeights>(run.model.path, "bert.");
    std::vector<std::string> names;
    for (const auto& item : model.named_parameters()) names.push_back(item.key());
    unexpected_ = weights_->unexpected(names);
  }

  void fill(const std::string& name, at::Tensor value) {
    if (weights_ && weights_->fill(name, value)) return;
    models::initialize_bert_parameter(config_, seed_, name, value);
    missing_.push_back(name);
  }

  void report() const {
    if (!weights_) {
      log_info("the model starts from random weights (model.init: random)");
      return;
    }
    if (!missing_.empty()) log_warning("not in the weights, so random: {}", fmt::join(missing_, ", "));
    if (!unexpected_.empty()) log_warning("in the weights but not in the model: {}", fmt::join(unexpected_, ", "));
  }

 private:
  models::BertConfig config_;
  uint64_t seed_;
  std::unique_ptr<models::PretrainedWeights> weights_;
  std::vector<std::string> missing_;
  std::vector<std::string> unexpected_;
};

bool without_decay(const std::string& name) {
  return name.ends_with("bias") || name.find("LayerNorm") != std::string::npos;
}

// The files of weights are mapped only while this runs: their pages would count as this process's memory.
std::unique_ptr<ModelEngine<models::BertForMaskedLM>> make_engine(const config::RunFile& run,
                                                                  const models::BertConfig& model_config,
                                                                  const config::DsConfig& config,
                                                                  const std::shared_ptr<comm::Communicator>& world) {
  const at::Device device = device_of(run, *world);
  const auto seed = static_cast<uint64_t>(run.training.seed + world->rank());  // dropout differs by rank
  engine::seed_random_state(seed);
  if (!device.is_cpu()) engine::seed_random_state(seed, device);
  const auto model = std::make_shared<models::BertForMaskedLM>(model_config);
  model->checkpoint_activations(run.training.activation_checkpointing);
  InitialValues values(run, model_config, *model);
  auto engine =
      initialize(model, config,
                 {.world = world,
                  .device = device,
                  .fill = [&](const std::string& name, at::Tensor value) { values.fill(name, std::move(value)); },
                  .no_decay = without_decay});
  if (world->rank() == 0) values.report();
  return engine;
}

int64_t steps_of_run(const config::RunFile& run, int64_t steps_per_epoch) {
  if (run.training.max_steps > 0) return run.training.max_steps;
  return std::max<int64_t>(1, std::llround(std::ceil(run.training.epochs * static_cast<double>(steps_per_epoch))));
}

std::string report_text(const RunOptions& options, const config::RunFile& run, const TrainerReport& report,
                        const std::vector<std::string>& memory) {
  std::string text = fmt::format("\n{} after {} steps\n", report.interrupted ? "stopped" : "done", report.steps);
  if (report.loss_before) {
    text += fmt::format("  loss on held-back text   {:.4f} before, {:.4f} after\n", *report.loss_before,
                        *report.loss_after);
  }
  for (size_t rank = 0; rank < memory.size(); ++rank) {
    text += fmt::format("  memory of rank {:<10} {}\n", rank, memory[rank]);
  }
  const fs::path output = run.output;
  text += fmt::format("  metrics                  {}\n", (output / "metrics.jsonl").string());
  text += fmt::format("  checkpoint               {}\n", report.checkpoint);
  if (!options.trace.empty()) text += fmt::format("  timeline                 {}\n", options.trace);
  if (!report.interrupted) text += fmt::format("  Hugging Face folder      {}\n", (output / "export").string());
  std::string again = fmt::format("tessera train {} --nproc {}", options.run_file, memory.size());
  for (const std::string& override : options.overrides) {
    if (report.interrupted || !override.starts_with("training.max_steps=")) again += " --set " + override;
  }
  const std::string goal = report.interrupted ? "" : fmt::format(" --set training.max_steps={}", report.steps * 2);
  text += "try next\n";
  text += fmt::format("  {} --resume auto{}\n", again, goal);
  text += fmt::format("  tessera checkpoint export {} --to {} --dtype bf16\n", (output / "checkpoints").string(),
                      (output / "export-bf16").string());
  text += fmt::format("  tessera config check {}\n", options.run_file);
  return text;
}

void train_here(const RunOptions& options, const config::RunFile& run,
                const std::shared_ptr<comm::Communicator>& world) {
  const models::BertConfig model_config = read_model_config(run);
  const auto tokenizer = data::load_tokenizer(run.tokenizer);
  check_sizes(run, model_config, *tokenizer);

  config::DsConfigInput input{.data_parallel_size = world->size()};
  input.auto_values.hidden_size = model_config.hidden_size;
  input.auto_values.leave_unknown = true;  // the number of steps follows from the batch sizes
  const config::DsConfig without_steps = config::resolve_ds_config(run, input);
  const config::BatchSizes& batch = without_steps.batch;
  check_memory(run, model_config, without_steps, *world);

  const data::TokenizedDataset dataset = read_dataset(run, run.data.train, *tokenizer, world->size());
  const data::MlmCollator collator(dataset, *tokenizer, mlm_options(run));
  data::Loader loader(dataset, collator,
                      {.micro_batch = batch.micro,
                       .accumulation = batch.accumulation,
                       .world_size = world->size(),
                       .rank = world->rank(),
                       .seed = static_cast<uint64_t>(run.training.seed),
                       .drop_last = without_steps.dataloader_drop_last});
  const int64_t max_steps = steps_of_run(run, loader.steps_per_epoch());
  input.auto_values.leave_unknown = false;
  input.auto_values.total_num_steps = max_steps;
  config::DsConfig config = config::resolve_ds_config(run, input);
  if (!config.own.lazy_publish) config.own.lazy_publish = true;  // nobody but forwards and checkpoints reads parameters

  std::optional<data::TokenizedDataset> eval_dataset;
  std::optional<data::MlmCollator> eval_collator;
  if (!run.data.eval.empty()) {
    eval_dataset.emplace(read_dataset(run, run.data.eval, *tokenizer, world->size()));
    eval_collator.emplace(*eval_dataset, *tokenizer, mlm_options(run));
  }

  const auto engine = make_engine(run, model_config, config, world);
  if (world->rank() == 0) {
    log_info("{} parameters, ZeRO stage {}, {} rank{}; {} samples, {} steps of {} samples",
             format_count(engine->sharded_model().param_count()), config.zero.stage, world->size(),
             world->size() == 1 ? "" : "s", format_count(static_cast<int64_t>(dataset.size())), format_count(max_steps),
             batch.global);
    std::error_code error;
    fs::create_directories(run.output, error);
    if (error) {
      throw Error(ErrorKind::kMachine,
                  {"the output folder cannot be made: " + error.message(), run.output, "choose another output"});
    }
  }

  Trainer trainer({.engine = *engine,
                   .loader = loader,
                   .accumulation = batch.accumulation,
                   .data_samples = static_cast<int64_t>(dataset.size()),
                   .eval_dataset = eval_dataset ? &*eval_dataset : nullptr,
                   .eval_collator = eval_collator ? &*eval_collator : nullptr},
                  {.output = run.output,
                   .model = run.model.path,
                   .max_steps = max_steps,
                   .eval_steps = run.training.eval_steps,
                   .save_steps = run.training.save_steps,
                   .retention = {.keep_last = run.training.keep_last, .keep_every = run.training.keep_every},
                   .async_save = run.training.async_save,
                   .resume = options.resume});
  const TrainerReport report = trainer.run();
  if (!options.trace.empty()) write_timeline(*world, options.trace);
  const auto memory =
      world->exchange_texts(fmt::format("{} of model state, {} at the peak", format_bytes(engine->model_state_bytes()),
                                        format_bytes(peak_memory_bytes())),
                            "the memory report");
  if (world->rank() == 0) {
    if (!report.interrupted) {
      checkpoint::export_hf(
          {.checkpoint = report.checkpoint, .model = run.model.path, .output = fs::path(run.output) / "export"});
    }
    std::fputs(report_text(options, run, report, memory).c_str(), stdout);
  }
  world->barrier("the end of the run");
}

}  // namespace

int run_training(const RunOptions& options) {
  const config::RunFile run = config::load_run_file(options.run_file, options.overrides);
  check_run(run);
  if (!options.trace.empty()) {
    check_timeline_path(options.trace);
    start_tracing();
  }
  keep_freed_memory();
  storage::use_reusing_cpu_allocator();
  const auto world = comm::init_distributed();
  if (world->size() == 1) {
    train_here(options, run, world);
    return 0;
  }
  try {
    train_here(options, run, world);
    return 0;
  } catch (const Error& error) {
    log_error("{}", error.what());
    // A rank that lost its peer lets that one end first, so that whoever watches the ranks blames the right one.
    if (error.kind() == ErrorKind::kPeer) std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    return exit_code(error.kind());
  }
}

}  // namespace tessera::train
