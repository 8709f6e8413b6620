#include "tessera/train/run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
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
#include "tessera/data/collator.h"
#include "tessera/engine/random_state.h"
#include "tessera/engine/timeline.h"
#include "tessera/models/pretrained_weights.h"
#include "tessera/storage/cpu_allocator.h"
#include "tessera/storage/device.h"
#include "tessera/train/masked_lm.h"
#include "tessera/train/metrics.h"
#include "tessera/train/report.h"
#include "tessera/train/run_setup.h"
#include "tessera/train/text_data.h"
#include "tessera/train/trainer.h"

namespace tessera::train {
namespace fs = std::filesystem;

namespace {

at::Device device_of(const config::RunFile& run, const comm::Group& world) {
  return storage::device_of_rank(run.training.device, world.local_rank(), run.name + ", training.device");
}

// Before anything is allocated; of runs on the CPU, whose memory it knows. All ranks look at what the ranks of their
// host saw, so that they refuse together.
void check_memory(const config::RunFile& run, const models::BertConfig& model, const config::DsConfig& config,
                  comm::Group& world) {
  const int64_t limit = config.own.host_memory_limit;
  if (limit > 0) limit_process_memory(static_cast<uint64_t>(limit));
  if (!run.training.memory_check || !device_of(run, world).is_cpu()) return;
  plan::MachineRoom room = plan::machine_room(swap_folder(run, config));
  const std::string host = host_name() + " ";
  int64_t ranks_of_host = 0;
  for (const std::string& seen : world.exchange_texts(host + std::to_string(room.available), "the memory check")) {
    if (!seen.starts_with(host)) continue;
    ++ranks_of_host;
    room.available = std::max<uint64_t>(room.available, std::stoull(seen.substr(host.size())));
  }
  ranks_of_host = std::min(ranks_of_host, env_int("LOCAL_WORLD_SIZE").value_or(ranks_of_host));
  const plan::ModelCensus census = memory_census(run, model);
  plan::check_fits({.model = census,
                    .setup = memory_setup(run, config, world.size()),
                    .room = room,
                    .ranks_of_host = std::max<int64_t>(1, ranks_of_host),
                    .samples_of_a_rank = config.batch.micro * config.batch.accumulation,
                    .where = run.name});
}

data::MlmOptions mlm_options(const config::RunFile& run) {
  return {.probability = run.data.mlm_probability,
          .max_length = run.data.max_length,
          .pad_to_max_length = run.data.padding == config::RunFile::Data::Padding::kMaxLength,
          .seed = static_cast<uint64_t>(run.training.seed)};
}

// Samples of some files, and what makes batches of them.
struct MlmData {
  MlmData(const config::RunFile& run, const std::string& key, const std::vector<std::string>& paths,
          const data::Tokenizer& tokenizer, const comm::Group& world)
      : dataset(read_dataset(run, key, paths, tokenizer, world.size())),
        collator(dataset, tokenizer, mlm_options(run)) {
    if (world.rank() != 0) return;
    const data::DatasetOptions options = dataset_options(run, paths);
    log_info("{}", describe_dataset(key, dataset, options));
    for (const std::string& doubt : doubts_of_dataset(key, dataset, options)) log_warning("{}", doubt);
  }

  data::TokenizedDataset dataset;
  data::MlmCollator collator;
};

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
    if (!missing_.empty()) log_warning("not in the weights, so initialized at random: {}", fmt::join(missing_, ", "));
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
                                                                  const std::shared_ptr<comm::Group>& world) {
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

std::string client_state(const config::RunFile& run) {
  return nlohmann::json{{"architecture", "BertForMaskedLM"}, {"model_folder", fs::absolute(run.model.path).string()}}
      .dump();
}

TrainerOptions trainer_options(const RunOptions& options, const config::RunFile& run, int64_t max_steps) {
  const config::RunFile::Training& training = run.training;
  return {.output = run.output,
          .max_steps = max_steps,
          .eval_steps = training.eval_steps,
          .eval_samples = training.eval_samples,
          .eval_at_start = training.eval_at_start,
          .save_steps = training.save_steps,
          .retention = {.keep_last = training.keep_last, .keep_every = training.keep_every},
          .keep_best = training.keep_best,
          .async_save = training.async_save,
          .resume = options.resume,
          .client_state = client_state(run)};
}

void finish_run(const RunOptions& options, const config::RunFile& run, const TrainerReport& report, Engine& engine) {
  comm::Group& world = engine.world();
  if (!options.trace.empty()) write_timeline(world, options.trace);
  const auto memory =
      world.exchange_texts(fmt::format("{} of model state, peak {}", format_bytes(engine.model_state_bytes()),
                                       format_bytes(peak_memory_bytes())),
                           "the memory report");
  if (world.rank() == 0) {
    if (!report.interrupted) {
      checkpoint::export_hf(
          {.checkpoint = report.checkpoint, .model = run.model.path, .output = fs::path(run.output) / "export"});
    }
    std::fputs(report_text(options, run, report, memory).c_str(), stdout);
  }
  world.barrier("the end of the run");
}

void train_here(const RunOptions& options, const config::RunFile& run, const std::shared_ptr<comm::Group>& world) {
  check_run(run, world->size());
  const models::BertConfig model_config = read_model_config(run);
  const auto tokenizer = load_tokenizer_of(run, model_config);
  config::DsConfigInput input = ds_config_input(model_config, world->size());
  const config::DsConfig without_steps = config::resolve_ds_config(run, input);
  check_memory(run, model_config, without_steps, *world);

  const MlmData training(run, "data.train", run.data.train, *tokenizer, *world);
  std::optional<MlmData> held_out;
  if (!run.data.eval.empty()) held_out.emplace(run, "data.eval", run.data.eval, *tokenizer, *world);
  const data::LoaderOptions loader{.micro_batch = without_steps.batch.micro,
                                   .accumulation = without_steps.batch.accumulation,
                                   .world_size = world->size(),
                                   .rank = world->rank(),
                                   .seed = static_cast<uint64_t>(run.training.seed),
                                   .drop_last = without_steps.dataloader_drop_last};
  const int64_t max_steps = steps_of_run(run, data::steps_in_epoch(training.dataset.size(), loader));
  input.auto_values.leave_unknown = false;
  input.auto_values.total_num_steps = max_steps;
  config::DsConfig config = config::resolve_ds_config(run, input);
  set_defaults_of_training(config);

  const auto engine = make_engine(run, model_config, config, world);
  if (world->rank() == 0) {
    log_info("{} parameters, ZeRO stage {}, {}; {} steps of {}", format_count(engine->sharded_model().param_count()),
             config.zero.stage, count_of(world->size(), "rank"), format_count(max_steps),
             count_of(config.batch.global, "sample"));
  }
  BatchTask<data::Batch> task({.train = training.collator.samples(),
                               .loss = [&](const data::Batch& batch) { return masked_lm_loss(*engine, batch); },
                               .eval = held_out ? held_out->collator.samples() : data::Samples<data::Batch>()},
                              loader);
  const TrainerReport report = Trainer(*engine, task, trainer_options(options, run, max_steps)).run();
  finish_run(options, run, report, *engine);
}

}  // namespace

int run_training(const RunOptions& options) {
  const config::RunFile run = config::load_run_file(options.run_file, options.overrides);
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
