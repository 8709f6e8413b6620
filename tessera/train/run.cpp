#include "tessera/train/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "tessera/base/allocator.h"
#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/host_memory.h"
#include "tessera/base/log.h"
#include "tessera/base/signals.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/comm/mesh.h"
#include "tessera/comm/rendezvous.h"
#include "tessera/config/run_file.h"
#include "tessera/data/chat_template.h"
#include "tessera/engine/pipeline_run.h"
#include "tessera/engine/random_state.h"
#include "tessera/engine/timeline.h"
#include "tessera/models/expert_ranks.h"
#include "tessera/models/initial_values.h"
#include "tessera/models/stages.h"
#include "tessera/nn/context_axis.h"
#include "tessera/nn/expert_axis.h"
#include "tessera/nn/tensor_axis.h"
#include "tessera/pipeline/check.h"
#include "tessera/storage/cpu_allocator.h"
#include "tessera/storage/device.h"
#include "tessera/storage/dtype.h"
#include "tessera/train/link_times.h"
#include "tessera/train/rank_run.h"
#include "tessera/train/report.h"
#include "tessera/train/run_data.h"
#include "tessera/train/run_facts.h"
#include "tessera/train/run_setup.h"
#include "tessera/train/tasks.h"
#include "tessera/train/trainer.h"

namespace tessera::train {
namespace fs = std::filesystem;

namespace {

at::Device device_of(const config::RunFile& run, const comm::Group& world) {
  return storage::device_of_rank(run.training.device, world.local_rank(), run.name + ", training.device");
}

// Before anything is allocated; of runs on the CPU, whose memory it knows. All ranks look at what the ranks of their
// host saw, so that they refuse together.
void check_memory(const config::RunFile& run, const models::FolderModel& model, const config::DsConfig& config,
                  const comm::Mesh& mesh, const std::optional<models::StageBounds>& stages) {
  comm::Group& world = *mesh.world();
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
  if (const int64_t told = comm::ranks_of_this_host()) ranks_of_host = std::min(ranks_of_host, told);
  const plan::ModelCensus census = memory_census(run, model, mesh.shape(), stages);
  plan::check_fits({.model = census,
                    .setup = memory_setup(run, config, mesh.shape().shards()),
                    .room = room,
                    .ranks_of_host = std::max<int64_t>(1, ranks_of_host),
                    .samples_of_a_rank = config.batch.micro * config.batch.accumulation,
                    .where = run.name});
}

// The files of weights are mapped only while this runs: their pages would count as this process's memory.
std::unique_ptr<NetworkEngine> make_engine(const config::RunFile& run, const models::FolderModel& folder_model,
                                           const config::DsConfig& config, const std::shared_ptr<comm::Mesh>& mesh,
                                           const std::optional<models::StageBounds>& stages,
                                           const std::optional<SharedSequences>& sharing) {
  const models::Model& model = *folder_model.model;
  const at::Device device = device_of(run, *mesh->world());
  // Dropout differs by the data and by the layers: ranks that hold parts of the same layers drop the same of what all
  // of them have.
  const comm::Group& sharers = *mesh->data_group();
  const int stage = mesh->coordinate(layout::kPipelineAxis);
  const auto seed = static_cast<uint64_t>(run.training.seed + stage * sharers.size() + sharers.rank());
  engine::seed_random_state(seed);
  if (!device.is_cpu()) engine::seed_random_state(seed, device);
  const nn::TensorAxis axis(mesh->group({layout::kTensorAxis}));
  const std::shared_ptr<models::Network> network = model.network_over(axis);
  if (sharing) network->share_sequences(nn::ContextAxis(mesh->group({layout::kContextAxis}), sharing->attention));
  network->checkpoint_activations(run.training.activation_checkpointing);
  const bool pretrained = run.model.init == config::RunFile::Model::Init::kPretrained;
  models::InitialValues values(model, *network, pretrained ? run.model.path : "",
                               static_cast<uint64_t>(run.training.seed), run.adapter.path);
  std::vector<std::function<void(layout::ParamSpec&)>> specify{
      models::keep_experts_of(*network, nn::ExpertAxis(mesh->group({layout::kExpertAxis})))};
  if (stages) specify.push_back(models::keep_stages_of(stage, *network, *stages));
  auto engine =
      initialize(network, config,
                 {.mesh = mesh,
                  .specify =
                      [&](layout::ParamSpec& spec) {
                        for (const auto& each : specify) each(spec);
                      },
                  .device = device,
                  .fill = [&](const std::string& name, at::Tensor value) { values.fill(name, std::move(value)); },
                  .no_decay = [&](const std::string& name) { return !model.decays(name); }});
  if (mesh->replica_group()->rank() == 0) values.report(folder_model.as.new_modules, *mesh->part_group());
  return engine;
}

std::string client_state(const config::RunFile& run, const models::FolderModel& model) {
  const std::string base = fs::absolute(run.model.path).string();
  nlohmann::ordered_json state{{"architecture", model.as.name}, {"model_folder", base}};
  if (const auto labels = config_of_labels(run); !labels.empty()) state["config"] = labels;
  if (const auto adapter = adapter_of(run)) state["adapter"] = models::peft_config(*model.model, *adapter, base);
  if (run.model.quantization == config::RunFile::Model::Quantization::kNf4) state["quantization"] = "nf4";
  // Exports get the template by which the model was trained.
  if (!run.data.chat_template.empty()) state["chat_template"] = data::chat_template_text(run.data.chat_template);
  return state.dump();
}

TrainerOptions trainer_options(const RunOptions& options, const config::RunFile& run, const models::FolderModel& model,
                               int64_t max_steps) {
  const config::RunFile::Training& training = run.training;
  return {.output = run.output,
          .max_steps = max_steps,
          .eval_steps = training.eval_steps,
          .eval_samples = training.eval_samples,
          .eval_at_start = training.eval_at_start,
          .save_steps = training.save_steps,
          .retention = {.keep_last = training.keep_last, .keep_every = training.keep_every},
          .best_by = training.best_by.empty() ? "eval_loss" : training.best_by,
          .keep_best = training.keep_best || !training.best_by.empty(),
          .patience = training.patience,
          .async_save = training.async_save,
          .trainable_only = adapter_of(run).has_value(),
          .max_bad_steps = training.max_bad_steps,
          .monitors = run.monitors,
          .resume = options.resume,
          .client_state = client_state(run, model)};
}

void finish_run(const RunOptions& options, const config::RunFile& run, const TrainerReport& report, Engine& engine,
                const RunRanks& ranks) {
  comm::Group& world = engine.world();
  if (!options.trace.empty()) engine::write_timeline(world, options.trace);
  const auto memory =
      world.exchange_texts(fmt::format("{} of model state, peak {}", format_bytes(engine.model_state_bytes()),
                                       format_bytes(peak_memory_bytes())),
                           "the memory report");
  if (world.rank() == 0) {
    if (!report.interrupted) {
      const bool of_best = !run.training.best_by.empty() && !report.best_checkpoint.empty();
      checkpoint::export_hf({.checkpoint = of_best ? report.best_checkpoint : report.checkpoint,
                             .model = run.model.path,
                             .output = fs::path(run.output) / "export"});
    }
    std::fputs(report_text(options, run, report, memory, ranks).c_str(), stdout);
  }
  world.barrier("the end of the run");
}

std::string axis_of_all(const layout::MeshShape& shape) {
  for (const layout::Axis& axis : shape.axes()) {
    if (axis.size == shape.ranks()) return axis.name;
  }
  return "all ranks";
}

// By rank 0's clock, on the first micro batch.
std::vector<double> measured_links(const config::RunFile& run, const models::Model& model, const RunData& data,
                                   const config::DsConfig& config, comm::Group& world) {
  std::string text;
  if (world.rank() == 0) {
    std::vector<size_t> rows(static_cast<size_t>(config.batch.micro));
    for (size_t row = 0; row < rows.size(); ++row) rows[row] = row % data.train.size;
    const data::Batch batch = data.train.collate(rows, /*epoch=*/0);
    const at::Device device = device_of(run, world);
    const std::vector<double> seconds =
        seconds_of_links(model, tensors_of(device, batch), device, storage::scalar_type(config.dtypes.compute));
    text = nlohmann::json(seconds).dump();
  }
  return nlohmann::json::parse(world.exchange_texts(text, "the times of the layers").front());
}

// Returns the exit code.
int train_here(const RunOptions& options, const config::RunFile& given, const std::shared_ptr<comm::Group>& world) {
  const config::RunFile run = check_run(given, world->size());
  comm::all_or_none(*world, "the checkpoint to resume from", [&] {  // rank 0 decides which is loaded, so it looks
    if (world->rank() == 0) require_checkpoint(options.resume);
  });
  comm::require_agreement(*world, facts_of_run(run), run.name);
  const TaskType& task_type = task_of(run);
  const models::FolderModel model = read_model_of(run);
  const auto tokenizer = load_tokenizer_of(run, *model.model);
  const auto mesh = std::make_shared<comm::Mesh>(world, mesh_shape_of(run, world->size()));
  comm::Group& readers = *mesh->batch_group();  // each of samples of its own
  config::DsConfigInput input = ds_config_input(*model.model, readers.size());
  const config::DsConfig without_steps = config::resolve_ds_config(run, input);
  auto stages = stages_of(run, model, mesh->shape(), without_steps.batch);
  const auto sharing = shared_sequences_of(run, model, without_steps, mesh->shape(), !device_of(run, *world).is_cpu());
  check_memory(run, model, without_steps, *mesh, stages);

  Listener listener;
  if (world->rank() == 0) {
    listener = {.say = [](const std::string& line) { log_info("{}", line); },
                .doubt = [](const std::string& line) { log_warning("{}", line); }};
  }
  const RunData run_data = read_run_data(run, *tokenizer, readers.size(), listener);
  if (stages && run.parallel.partition == "time" && run.parallel.stage_sizes.empty()) {
    stages = stages_of(run, model, mesh->shape(), without_steps.batch,
                       measured_links(run, *model.model, run_data, without_steps, *world));
  }
  const data::LoaderOptions loader{.micro_batch = without_steps.batch.micro,
                                   .accumulation = without_steps.batch.accumulation,
                                   .world_size = readers.size(),
                                   .rank = readers.rank(),
                                   .seed = static_cast<uint64_t>(run.training.seed),
                                   .drop_last = without_steps.dataloader_drop_last};
  const int64_t max_steps = steps_of_run(run, data::steps_in_epoch(run_data.train.size, loader));
  input.auto_values.leave_unknown = false;
  input.auto_values.total_num_steps = max_steps;
  config::DsConfig config = config::resolve_ds_config(run, input);
  set_defaults_of_training(config);

  const auto engine = make_engine(run, model, config, mesh, stages, sharing);
  std::unique_ptr<engine::PipelineRun> pipeline;
  if (stages) {
    pipeline = std::make_unique<engine::PipelineRun>(*engine, *mesh, run.parallel.schedule,
                                                     static_cast<int>(run.parallel.stages_per_rank));
  }
  if (world->rank() == 0) {
    const plan::ModelCensus census = census_of_whole(run, model);
    if (!run.model.freeze.empty())
      log_info("model.freeze: {} parameters keep their values", format_count(census.frozen));
    if (adapter_of(run)) {
      log_info("an adapter of {} parameters is trained, the model's own are frozen", format_count(census.trained()));
    }
    if (census.quantized > 0) {
      log_info("{} of them are kept as NF4, in {}", format_count(census.quantized),
               format_bytes(static_cast<uint64_t>(census.quantized_bytes)));
    }
    log_info("{} parameters, ZeRO stage {}, {}; {} of {}", format_count(census.params), config.zero.stage,
             ranks_in_words(mesh->shape()), count_of(max_steps, "step"), count_of(config.batch.global, "sample"));
    if (sharing) log_info("context {}", sharing->in_words());
    if (pipeline) {
      const pipeline::Schedule& schedule = pipeline->schedule();
      log_info("pipeline {}: {}; of a step of {}, ranks idle {:.0f} %", schedule.name,
               models::describe(*stages, model.model->network()->links()),
               count_of(schedule.micro_batches, "micro batch", "micro batches"), 100 * pipeline::idle_share(schedule));
    }
  }
  const auto loss_with = [&](TalliesOf tallies) -> LossOfBatch {
    if (task_type.loss) return [&](const data::Batch& batch) { return task_type.loss(*engine, batch); };
    // Of ranks that share sequences, each has the loss of its own tokens; one counts those of all.
    const bool counts = mesh->coordinate(layout::kContextAxis) == 0;
    return [&, tallies, counts](const data::Batch& batch, const engine::StagePass& pass) {
      BatchLoss loss = batch_loss(*engine, batch, stages ? &*stages : nullptr, pass, tallies);
      if (!counts) loss.targets = loss.tokens = 0;
      return loss;
    };
  };
  const LossOfBatch loss = task_type.start ? task_type.start({.engine = *engine,
                                                              .run = run,
                                                              .training = *run_data.training,
                                                              .held_out = run_data.held_out.get(),
                                                              .resumes = !options.resume.empty()})
                                           : loss_with(nullptr);
  BatchTask<data::Batch> task({.train = run_data.train,
                               .loss = loss,
                               .eval = run_data.eval,
                               .eval_loss = task_type.tallies ? loss_with(task_type.tallies) : loss,
                               .metrics = metrics_of(run),
                               .eval_tallies = [&] { return run_data.eval_tallies(*engine); },
                               .pipeline = pipeline.get()},
                              loader);
  const TrainerReport report = Trainer(*engine, task, trainer_options(options, run, model, max_steps)).run();
  finish_run(options, run, report, *engine,
             {.all = axis_of_all(mesh->shape()),
              .bubble = pipeline ? std::optional(pipeline::idle_share(pipeline->schedule())) : std::nullopt});
  return report.wants_requeue ? kRequeueCode : 0;
}

}  // namespace

int run_training(const RunOptions& options) {
  const config::RunFile run = config::load_run_file(options.run_file, options.overrides);
  if (!options.trace.empty()) {
    engine::check_timeline_path(options.trace);
    start_tracing();
  }
  keep_freed_memory();
  storage::use_reusing_cpu_allocator();
  int code = 0;
  const int failed =
      run_as_rank([&](const std::shared_ptr<comm::Group>& world) { code = train_here(options, run, world); });
  return failed != 0 ? failed : code;
}

}  // namespace tessera::train
