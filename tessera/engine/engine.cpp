#include "tessera/engine/engine.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/host_memory.h"
#include "tessera/base/log.h"
#include "tessera/checkpoint/save_16bit.h"
#include "tessera/engine/nvme_activations.h"
#include "tessera/engine/random_state.h"
#include "tessera/engine/wiring.h"
#include "tessera/optim/optimizers.h"
#include "tessera/storage/cpu_allocator.h"
#include "tessera/storage/dtype.h"
#include "tessera/zero/delayed_update.h"
#include "tessera/zero/memory_budget.h"
#include "tessera/zero/rank_state.h"
#include "tessera/zero/sharded_step.h"

namespace tessera {

config::DsConfig load_config_for(const std::string& path, const InitializeOptions& options) {
  return config::load_ds_config(path, {.data_parallel_size = options.world ? options.world->size() : 1});
}

namespace {

// Names of a rank's own tensors in a checkpoint; those that the engine's user gave follow the prefix.
const std::string kRandomState = "random_state";
const std::string kDeviceRandomState = "device_random_state";
const std::string kClientPrefix = "client/";

std::shared_ptr<nn::ActivationStore> make_activation_store(const config::DsConfig& config) {
  const config::ActivationCheckpointing& options = config.activation_checkpointing;
  std::shared_ptr<nn::ActivationFile> file;
  if (!options.nvme_path.empty()) {
    file = std::make_shared<engine::NvmeActivations>(options.nvme_path, storage::io_options_of(config.aio));
  }
  return std::make_shared<nn::ActivationStore>(
      nn::ActivationStoreOptions{.in_host_memory = options.cpu_checkpointing || file,
                                 .slots = options.contiguous_memory_optimization ? options.number_checkpoints : 0,
                                 .file = file});
}

// What the ranks take, as this one sees it.
void log_memory(const zero::MemoryBudget& budget, const zero::Offload& offload, int64_t limit) {
  std::string text = fmt::format("memory per rank: {} of training state", format_bytes(budget.state.memory));
  if (budget.state.disk > 0) {
    const storage::SwapFile& file = *(offload.optimizer ? offload.optimizer : offload.parameters);
    text += fmt::format(", and {} on disk ({}; {}, {}) that passes through at most {} of buffers",
                        format_bytes(budget.state.disk), file.folder(), file.engine(),
                        file.is_direct() ? "direct I/O" : "through the page cache", format_bytes(budget.buffers));
  }
  if (limit > 0) text += fmt::format("; at most {} for the process (tessera.host_memory_limit)", format_bytes(limit));
  log_info("{}", text);
}

}  // namespace

Engine::Engine(engine::ModelTree model, const config::DsConfig& config, const InitializeOptions& options)
    : activations_(make_activation_store(config)),
      config_(config),
      world_(options.world ? options.world : comm::init_distributed()),
      scaler_(config.loss_scaling) {
  storage::use_reusing_cpu_allocator();
  config::require_supported(config_);
  const int64_t limit = config_.own.host_memory_limit;
  if (limit > 0) limit_process_memory(static_cast<uint64_t>(limit));
  if (world_->rank() == 0) {
    for (const std::string& warning : config_.warnings) log_warning("{}", warning);
  }
  for (const zero::ModuleParams& module : model.modules) module_names_.push_back(module.name);
  if (config_.dtypes.autocast) autocast_dtype_ = storage::scalar_type(*config_.dtypes.autocast);
  engine::Wiring wiring = engine::wire(std::move(model), config_, options, world_);
  optimizer_ = std::move(wiring.optimizer);
  schedule_ = std::move(wiring.schedule);
  initial_groups_ = wiring.groups;
  groups_ = std::move(wiring.groups);
  sharded_ = std::move(wiring.sharded);
  const zero::MemoryBudget budget = zero::memory_budget(*sharded_, optimizer_->elementwise());
  const bool says = world_->rank() == 0 && (limit > 0 || budget.state.disk > 0);
  if (says) log_memory(budget, sharded_->policy().offload, limit);
  if (config_.own.delayed_update) delayed_ = std::make_unique<zero::DelayedUpdate>(*sharded_, *optimizer_);
  saver_ = std::make_unique<checkpoint::Saver>(*world_);
  if (config_.scheduler) first_schedule_step_ = config_.scheduler->params.value("last_batch_iteration", -1) + 1;
  apply_schedule();
  sharded_->set_unannounced_backward({.begins = [this] { begin_backward(); }, .ends = [this] { finish_backward(); }});
  storage::release_free_cpu_memory();  // the parameters as they came
}

// The memory that steps kept goes back to the system with it.
Engine::~Engine() {
  saver_.reset();
  delayed_.reset();
  sharded_.reset();
  storage::release_free_cpu_memory();
}

ModuleEngine::ModuleEngine(std::shared_ptr<torch::nn::Module> model, const config::DsConfig& config,
                           const InitializeOptions& options)
    : Engine(engine::tree_of(*model).tree, config, options),
      model_(std::move(model)),
      announcing_(engine::tree_of(*model_).announcing) {
  for (size_t number = 0; number < announcing_.size(); ++number) {
    if (announcing_[number] != nullptr) announcing_[number]->set_observer(this, number);
  }
  for (const auto& item : model_->named_parameters()) names_.insert(item.key());
  logs_steps_ = true;
}

void ModuleEngine::require_known_parameters() {
  if (!model_->is_training() || micro_steps() < next_check_) return;
  next_check_ = micro_steps() + config().batch.accumulation;
  for (const auto& item : model_->named_parameters()) {
    if (!item.value().requires_grad()) continue;
    const auto place = sharded_model().place_of(item.value());
    if (!place) {
      throw Error(
          ErrorKind::kUsage,
          {fmt::format("the parameter '{}' was {} after initialize, so no engine trains it", item.key(),
                       names_.contains(item.key()) ? "replaced" : "added"),
           "Engine::forward", "change the model before initialize; to give a parameter new values, load a checkpoint"});
    }
    const zero::Unit& unit = *sharded_model().units()[place->unit];
    if (!unit.trainable() && unit.params()[place->param].trainable()) {
      throw Error(ErrorKind::kUsage,
                  {fmt::format("the parameter '{}' was frozen when the engine was made, and requires a gradient now",
                               item.key()),
                   "Engine::forward", "set requires_grad before initialize"});
    }
  }
}

ModuleEngine::~ModuleEngine() {
  for (nn::UnitModuleBase* module : announcing_) {
    if (module != nullptr) module->set_observer(nullptr, 0);
  }
}

void ModuleEngine::before_forward(size_t module, const std::vector<at::Tensor>& inputs) {
  Engine::before_forward(module, inputs);
}

void ModuleEngine::after_forward(size_t module, const std::vector<at::Tensor>& outputs) {
  Engine::after_forward(module, outputs);
}

void Engine::before_forward(size_t module, const std::vector<at::Tensor>& inputs) {
  if (tracing()) {
    forwards_.push_back({TraceLane::kCompute,
                         fmt::format("forward of '{}'", module_names_[module]),
                         std::chrono::steady_clock::now(),
                         {}});
  }
  sharded_->before_forward(module, inputs);
}

void Engine::after_forward(size_t module, const std::vector<at::Tensor>& outputs) {
  sharded_->after_forward(module, outputs);
  if (forwards_.empty()) return;
  forwards_.back().end = std::chrono::steady_clock::now();
  trace(std::move(forwards_.back()));
  forwards_.pop_back();
}

bool Engine::is_gradient_accumulation_boundary() const {
  if (boundary_override_) return *boundary_override_;
  return (micro_steps_ + 1) % config_.batch.accumulation == 0;
}

void Engine::begin_backward() {
  sharded_->begin_backward();
  sharded_->reducer().set_boundary(is_gradient_accumulation_boundary());
  sharded_->reducer().set_keeps_own(optimizer_->takes_own_gradients(applied_steps() + 1));
}

void Engine::finish_backward() {
  sharded_->finish_backward();
  gradients_pending_ = true;
}

// With loss scaling in fp32: fp16 could hold neither a small share of the loss nor its multiple.
at::Tensor Engine::widened(const at::Tensor& loss) const {
  return config_.loss_scaling.enabled ? loss.to(at::kFloat) : loss;
}

at::Tensor Engine::scale(const at::Tensor& loss) const {
  return scaler_.scale() == 1 ? widened(loss) : widened(loss) * scaler_.scale();
}

void Engine::abandon_pass() {
  forwards_.clear();
  sharded_->abandon_pass();
  gradients_pending_ = false;
}

void Engine::zero_grad() {
  world_->settle();
  sharded_->reducer().clear();
  gradients_pending_ = false;
}

void Engine::reduce_accumulated() {
  if (config_.zero.stage >= 2 || !gradients_pending_) return;
  begin_backward();  // one that has no gradients
  finish_backward();
}

at::Tensor Engine::backward(const at::Tensor& loss, const BackwardOptions& options) {
  if (!loss.defined() || loss.numel() != 1 || !loss.requires_grad()) {
    throw Error(ErrorKind::kUsage,
                {"backward() needs a one-element loss that depends on the parameters", "Engine::backward",
                 "pass the loss computed from forward(); under NoGradGuard it does not depend on them"});
  }
  const TraceSpan span(TraceLane::kCompute, "backward");
  begin_backward();
  const bool divides = options.divides_by_accumulation && config_.batch.accumulation != 1;
  const at::Tensor divided = divides ? widened(loss) / config_.batch.accumulation : widened(loss);
  scale(divided).backward({}, options.retain_graph);
  finish_backward();
  return divided;
}

void Engine::step() {
  if (!gradients_pending_) {
    throw Error(ErrorKind::kUsage, {"step() was called without a backward() since the last one", "Engine::step",
                                    "call forward, backward and step in turn"});
  }
  gradients_pending_ = false;
  const bool boundary = is_gradient_accumulation_boundary();
  ++micro_steps_;
  if (!boundary) return;
  const TraceSpan span(TraceLane::kCompute, "step");

  const zero::StepResult result = update({.step = applied_steps() + 1,
                                          .max_norm = config_.gradient_clipping,
                                          .loss_scale = scaler_.scale(),
                                          .skip_nonfinite = config_.skip_nonfinite,
                                          .name_nonfinite = scaler_.at_the_end()});
  last_grad_norm_ = result.grad_norm;
  last_step_applied_ = !result.skipped;
  ++global_steps_;
  log_checkpoint_costs();
  global_samples_ += config_.batch.global;
  if (result.skipped) {
    count_skipped_step(result);
  } else {
    scaler_.update(/*overflow=*/false);
  }
  if (logs_steps_) log_step();
  apply_schedule();
  storage::end_step_of_cpu_allocator();
  saver_->throw_failure();
}

zero::StepResult Engine::update(const zero::StepInput& input) {
  const bool delays = delayed_ && input.step > config_.own.delayed_update_after;
  return delays ? delayed_->step(groups_, input) : zero::sharded_step(*sharded_, *optimizer_, groups_, input);
}

void Engine::finish_update() {
  if (delayed_) delayed_->finish();
  sharded_->finish_publishing();
}

void Engine::count_skipped_step(const zero::StepResult& result) {
  ++skipped_steps_;
  const double scale = scaler_.scale();
  if (scaler_.at_the_end()) {
    throw Error(ErrorKind::kData,
                {fmt::format("step {} overflowed with the loss scale at its minimum, {}", global_steps_, scale),
                 fmt::format("non-finite gradients: {}", fmt::join(result.nonfinite, ", ")),
                 "train in bf16 or fp32, lower the learning rate, or look for a division by zero in these layers"});
  }
  scaler_.update(/*overflow=*/true);
  if (world_->rank() != 0) return;
  if (config_.loss_scaling.enabled) {
    log_warning("OVERFLOW: step {} was skipped; loss scale {} -> {}", global_steps_, scale, scaler_.scale());
  } else {
    log_warning("step {} was skipped: the gradient norm is {}", global_steps_, result.grad_norm);
  }
}

void Engine::log_checkpoint_costs() {
  if (!config_.activation_checkpointing.profile) return;
  const nn::CheckpointCosts costs = activations_->take_costs();
  log_info("step {}: {} activation checkpoints, {:.1f} ms in forward; {} recomputed, {:.1f} ms", global_steps_,
           costs.checkpoints, costs.forward_seconds * 1e3, costs.recomputations, costs.recomputation_seconds * 1e3);
}

// The values with which the step was taken, in DeepSpeed's words.
void Engine::log_step() const {
  const bool due = config_.steps_per_print && global_steps_ % *config_.steps_per_print == 0;
  if (!due || world_->rank() != 0) return;
  std::vector<std::string> rates, moments;
  for (const optim::ParamGroup& group : groups_) {
    rates.push_back(fmt::format("{}", group.lr));
    moments.push_back(fmt::format("[{}, {}]", group.beta1, group.beta2));
  }
  log_info("step={}, skipped={}, lr=[{}], mom=[{}]", global_steps_, skipped_steps_, fmt::join(rates, ", "),
           fmt::join(moments, ", "));
}

// See schedule.h: the schedule advances with each step that was applied.
void Engine::apply_schedule() {
  if (!schedule_) return;
  const int64_t n = applied_steps() - schedule_begins_after_ - 1 + first_schedule_step_;
  for (size_t index = 0; index < groups_.size(); ++index) {
    const optim::ScheduledValues values = schedule_->at(n, initial_groups_[index], index);
    groups_[index].lr = values.lr;
    if (values.beta1) groups_[index].beta1 = *values.beta1;
    if (values.beta2) groups_[index].beta2 = *values.beta2;
  }
}

nlohmann::json Engine::state() const {
  return {{"micro_steps", micro_steps_},
          {"global_steps", global_steps_},
          {"global_samples", global_samples_},
          {"skipped_steps", skipped_steps_},
          {"schedule_begins_after", schedule_begins_after_},
          {"loss_scaler", scaler_.state()}};
}

checkpoint::SaveOptions Engine::save_options() const {
  using checkpoint::TagValidation;
  const config::Json& validation = config_.value("checkpoint.tag_validation");
  return {.in_background = config_.value("checkpoint.async_save") == true,
          .node_local = config_.value("checkpoint.use_node_local_storage") == true,
          .tag_validation = validation == "Fail"     ? TagValidation::kFail
                            : validation == "Ignore" ? TagValidation::kIgnore
                                                     : TagValidation::kWarn};
}

std::string Engine::save_checkpoint(const std::string& folder, const std::string& tag,
                                    const nlohmann::json& client_state, const checkpoint::SaveOptions& options,
                                    const std::map<std::string, at::Tensor>& rank_tensors) {
  const TraceSpan span(TraceLane::kCompute, "save_checkpoint");
  if (gradients_pending_ || micro_steps_ % config_.batch.accumulation != 0) {
    if (!boundary_override_) {
      throw Error(ErrorKind::kUsage, {"a checkpoint in the middle of gradient accumulation would lose gradients",
                                      "Engine::save_checkpoint", "save after the step() that ends accumulation"});
    }
  }
  finish_update();
  std::map<std::string, at::Tensor> own = zero::rank_state(*sharded_, *optimizer_);
  own[kRandomState] = engine::random_state();
  if (!device().is_cpu()) own[kDeviceRandomState] = engine::random_state(device());
  for (const auto& [name, tensor] : rank_tensors) own[kClientPrefix + name] = tensor;
  return saver_->save({.folder = folder,
                       .tag = tag.empty() ? fmt::format("global_step{}", global_steps_) : tag,
                       .model = *sharded_,
                       .optimizer_states = optimizer_->state_names(),
                       .optimizer_numbers = optimizer_->number_names(),
                       .engine_state = state(),
                       .client_state = client_state,
                       .rank_tensors = std::move(own),
                       .options = options});
}

bool Engine::save_16bit_model(const std::string& folder, const std::string& file, bool exclude_frozen_parameters) {
  const std::string key = "zero_optimization.stage3_gather_16bit_weights_on_model_save";
  if (config_.zero.stage == 3 && config_.value(key) != true) {
    if (world_->rank() == 0) log_warning("no weights were saved: at stage 3 saving them needs '{}': true", key);
    return false;
  }
  finish_update();
  checkpoint::save_16bit_weights(*sharded_, std::filesystem::path(folder) / file, exclude_frozen_parameters);
  return true;
}

std::optional<LoadedCheckpoint> Engine::load_checkpoint(const std::string& folder, const std::string& tag,
                                                        const checkpoint::LoadOptions& options) {
  saver_->finish();
  finish_update();
  const auto loaded = checkpoint::load({.folder = folder,
                                        .tag = tag,
                                        .model = *sharded_,
                                        .optimizer_states = optimizer_->state_names(),
                                        .optimizer_numbers = optimizer_->number_names(),
                                        .options = options});
  if (!loaded) return std::nullopt;
  if (options.optimizer_states && !options.weights_only) {
    zero::restore_rank_state(*sharded_, *optimizer_, loaded->rank_tensors);
  }
  zero::publish_parameters(*sharded_);
  LoadedCheckpoint result{loaded->path, loaded->client_state};
  if (options.weights_only) return result;
  for (const auto& [name, tensor] : loaded->rank_tensors) {
    if (name.starts_with(kClientPrefix)) result.rank_tensors[name.substr(kClientPrefix.size())] = tensor;
  }
  micro_steps_ = loaded->engine_state.at("micro_steps");
  global_steps_ = loaded->engine_state.at("global_steps");
  global_samples_ = loaded->engine_state.at("global_samples");
  skipped_steps_ = loaded->engine_state.at("skipped_steps");
  scaler_.set_state(loaded->engine_state.at("loss_scaler"));
  const auto random = loaded->rank_tensors.find(kRandomState);
  if (random != loaded->rank_tensors.end()) {
    engine::set_random_state(random->second);
    const auto of_device = loaded->rank_tensors.find(kDeviceRandomState);
    if (!device().is_cpu() && of_device != loaded->rank_tensors.end()) {
      engine::set_random_state(of_device->second, device());
    }
  } else if (world_->rank() == 0 && options.optimizer_states) {
    log_info("the checkpoint was made by a different number of ranks: random numbers (dropout) start from the seed");
  }
  schedule_begins_after_ =
      options.schedule ? int64_t{loaded->engine_state.value("schedule_begins_after", 0)} : applied_steps();
  apply_schedule();
  return result;
}

}  // namespace tessera
