#include "tessera/engine/engine_base.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include "tessera/base/activity.h"
#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/host_memory.h"
#include "tessera/base/log.h"
#include "tessera/base/trace.h"
#include "tessera/checkpoint/save_16bit.h"
#include "tessera/comm/collective_log.h"
#include "tessera/comm/mesh.h"
#include "tessera/engine/autocast.h"
#include "tessera/engine/checkpointing.h"
#include "tessera/engine/host_activations.h"
#include "tessera/engine/nvme_activations.h"
#include "tessera/engine/step_times.h"
#include "tessera/engine/stepping.h"
#include "tessera/engine/timeline.h"
#include "tessera/engine/wiring.h"
#include "tessera/nn/deferred_weights.h"
#include "tessera/storage/cpu_allocator.h"
#include "tessera/storage/dtype.h"
#include "tessera/zero/memory_budget.h"
#include "tessera/zero/param_access.h"

namespace tessera {

namespace {

std::shared_ptr<nn::ActivationStore> make_activation_store(const config::DsConfig& config,
                                                           const std::shared_ptr<storage::HostLink>& link) {
  const config::ActivationCheckpointing& options = config.activation_checkpointing;
  std::shared_ptr<nn::ActivationFile> file;
  if (!options.nvme_path.empty()) {
    file = std::make_shared<engine::NvmeActivations>(options.nvme_path, storage::io_options_of(config.aio));
  }
  return std::make_shared<nn::ActivationStore>(
      nn::ActivationStoreOptions{.in_host_memory = options.cpu_checkpointing || file,
                                 .host_copies = link ? std::make_shared<engine::HostActivations>(link) : nullptr,
                                 .slots = options.contiguous_memory_optimization ? options.number_checkpoints : 0,
                                 .file = file});
}

std::shared_ptr<comm::Mesh> mesh_of(const InitializeOptions& options) {
  if (options.mesh) return options.mesh;
  return comm::Mesh::data_parallel(options.world ? options.world : comm::init_distributed());
}

}  // namespace

Engine::Engine(engine::ModelTree model, const config::DsConfig& config, const InitializeOptions& options)
    : Engine(std::move(model), config, options, mesh_of(options)) {}

Engine::Engine(engine::ModelTree model, const config::DsConfig& config, const InitializeOptions& options,
               std::shared_ptr<comm::Mesh> mesh)
    : config_(std::make_unique<config::DsConfig>(config)), world_(mesh->world()) {
  storage::use_reusing_cpu_allocator();
  config::require_supported(*config_);
  if (config_->own.host_memory_limit > 0) {
    limit_process_memory(static_cast<uint64_t>(config_->own.host_memory_limit));
  }
  if (world_->rank() == 0) {
    for (const std::string& warning : config_->warnings) log_warning("{}", warning);
  }
  for (const zero::ModuleParams& module : model.modules) module_names_.push_back(module.name);
  if (config_->dtypes.autocast) autocast_dtype_ = storage::scalar_type(*config_->dtypes.autocast);
  engine::Wiring wiring = engine::wire(std::move(model), *config_, options, std::move(mesh));
  optimizer_ = std::move(wiring.optimizer);
  sharded_ = std::move(wiring.sharded);
  activations_ = make_activation_store(*config_, sharded_->policy().offload.link);
  log_memory();
  state_ = std::make_unique<engine::TrainingState>(*config_, std::move(wiring.schedule), std::move(wiring.groups));
  stepping_ = std::make_unique<engine::Stepping>(*config_, *sharded_, *optimizer_, *state_);
  checkpoints_ = std::make_unique<engine::Checkpointing>(*sharded_, *optimizer_, *state_);
  times_ = std::make_unique<engine::StepTimes>(config_->wall_clock_breakdown && world_->rank() == 0,
                                               config_->value("memory_breakdown") == true, device());
  if (config_->value("comms_logger.enabled") == true) comm::start_collective_log();
  sharded_->set_unannounced_backward({.begins = [this] { begin_backward(); }, .ends = [this] { finish_backward(); }});
  storage::release_free_cpu_memory();  // the parameters as they came
}

// What the ranks take, as this one sees it.
void Engine::log_memory() const {
  const zero::MemoryBudget budget = zero::memory_budget(*sharded_, optimizer_->elementwise());
  const int64_t limit = config_->own.host_memory_limit;
  if (world_->rank() != 0 || (limit == 0 && budget.state.disk == 0)) return;
  std::string text = fmt::format("memory per rank: {} of training state", format_bytes(budget.state.memory));
  if (budget.state.disk > 0) {
    const zero::Offload& offload = sharded_->policy().offload;
    const storage::SwapFile& file = *(offload.optimizer ? offload.optimizer : offload.parameters);
    text += fmt::format(", and {} on disk ({}; {}, {}) that passes through at most {} of buffers",
                        format_bytes(budget.state.disk), file.folder(), file.engine(),
                        file.is_direct() ? "direct I/O" : "through the page cache", format_bytes(budget.buffers));
  }
  if (limit > 0) text += fmt::format("; at most {} for the process (tessera.host_memory_limit)", format_bytes(limit));
  log_info("{}", text);
}

// The memory that steps kept goes back to the system with it.
Engine::~Engine() {
  checkpoints_.reset();
  stepping_.reset();
  sharded_.reset();
  storage::release_free_cpu_memory();
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
  return state_->accumulated(config_->batch.accumulation) + 1 == config_->batch.accumulation;
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

struct Engine::ForwardScope::Guards {
  std::optional<engine::StepTimes::Scope> times;  // of a forward that trains
  engine::Autocast autocast;
  nn::ActivationStore::Scope activations;
};

Engine::ForwardScope::ForwardScope(const Engine& engine)
    : guards_(new Guards{std::nullopt, engine::Autocast(engine.device().type(), engine.autocast_dtype_),
                         nn::ActivationStore::Scope(engine.activations_)}) {
  if (at::GradMode::is_enabled()) guards_->times.emplace(*engine.times_, engine::StepTimes::kForward);
}

Engine::ForwardScope::~ForwardScope() = default;

bool Engine::casts(const at::Tensor& input) const {
  return config_->dtypes.cast_inputs && input.defined() && at::isFloatingType(input.scalar_type());
}

// With loss scaling in fp32: fp16 could hold neither a small share of the loss nor its multiple.
at::Tensor Engine::widened(const at::Tensor& loss) const {
  return config_->loss_scaling.enabled ? loss.to(at::kFloat) : loss;
}

at::Tensor Engine::scale(const at::Tensor& loss) const {
  return loss_scale() == 1 ? widened(loss) : widened(loss) * loss_scale();
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
  if (config_->zero.stage >= 2 || !gradients_pending_) return;
  begin_backward();  // one that has no gradients
  finish_backward();
}

at::Tensor Engine::backward(const at::Tensor& loss, const BackwardOptions& options) {
  if (!loss.defined() || loss.numel() != 1 || !loss.requires_grad()) {
    throw Error(ErrorKind::kUsage,
                {"backward() needs a one-element loss that depends on the parameters", "Engine::backward",
                 "pass the loss computed from forward(); under NoGradGuard it does not depend on them"});
  }
  const Activity activity("backward");
  const engine::StepTimes::Scope time(*times_, engine::StepTimes::kBackward);
  begin_backward();
  const bool divides = options.divides_by_accumulation && config_->batch.accumulation != 1;
  const at::Tensor divided = divides ? widened(loss) / config_->batch.accumulation : widened(loss);
  scale(divided).backward({}, options.retain_graph);
  if (!options.puts_off_weights) finish_backward();
  return divided;
}

void Engine::backward_from(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& gradients,
                           bool puts_off_weights) {
  const Activity activity("backward");
  const engine::StepTimes::Scope time(*times_, engine::StepTimes::kBackward);
  begin_backward();
  if (!outputs.empty()) torch::autograd::backward(outputs, gradients);
  if (!puts_off_weights) finish_backward();
}

void Engine::backward_weights(nn::DeferredWeights& weights) {
  const Activity activity("backward");
  const engine::StepTimes::Scope time(*times_, engine::StepTimes::kBackward);
  begin_backward();
  weights.run();
  finish_backward();
}

void Engine::step(int64_t samples) {
  if (!gradients_pending_) {
    throw Error(ErrorKind::kUsage, {"step() was called without a backward() since the last one", "Engine::step",
                                    "call forward, backward and step in turn"});
  }
  gradients_pending_ = false;
  const bool boundary = is_gradient_accumulation_boundary();
  state_->count_micro_step();
  if (boundary) take_step(samples);
  if (logs_steps_) times_->end_micro_batch(boundary);
}

void Engine::take_step(int64_t samples) {
  const Activity activity("step");
  const engine::StepTimes::Scope time(*times_, engine::StepTimes::kStep);
  zero::take_replaced_data(*sharded_, zero::Unlike::kRefuse);
  stepping_->take(samples > 0 ? samples : config_->batch.global);
  log_activation_checkpoints();
  if (logs_steps_) stepping_->log();
  state_->apply_schedule();
  storage::end_step_of_cpu_allocator();
  checkpoints_->saver().throw_failure();
}

void Engine::set_batch(const config::BatchSizes& batch) {
  state_->change_accumulation(config_->batch.accumulation);
  config_->batch = batch;
}

int64_t Engine::train_batch_size() const { return config_->batch.global; }
int64_t Engine::train_micro_batch_size_per_gpu() const { return config_->batch.micro; }
int64_t Engine::gradient_accumulation_steps() const { return config_->batch.accumulation; }

double Engine::lr() const { return state_->groups().front().lr; }
double Engine::loss_scale() const { return state_->scaler().scale(); }
int64_t Engine::global_steps() const { return state_->global_steps(); }
int64_t Engine::global_samples() const { return state_->global_samples(); }
int64_t Engine::skipped_steps() const { return state_->skipped_steps(); }
int64_t Engine::applied_steps() const { return state_->applied_steps(); }
int64_t Engine::micro_steps() const { return state_->micro_steps(); }
std::vector<optim::ParamGroup>& Engine::param_groups() { return state_->groups(); }
void Engine::set_schedule(std::shared_ptr<optim::RunningSchedule> schedule) {
  state_->set_schedule(std::move(schedule));
}

comm::Group& Engine::data_group() { return *sharded_->groups().all; }
comm::Group& Engine::batch_group() { return *sharded_->mesh().batch_group(); }
at::Device Engine::device() const { return sharded_->device(); }
int64_t Engine::model_state_bytes() const { return sharded_->model_state_bytes().memory; }
int64_t Engine::param_count() const { return sharded_->param_count(); }
int64_t Engine::offloaded_bytes() const { return sharded_->model_state_bytes().disk; }

double Engine::get_global_grad_norm() const { return stepping_->grad_norm(); }

bool Engine::was_step_applied() const { return stepping_->was_applied(); }

void Engine::finish_update() { stepping_->finish_update(); }

void Engine::log_activation_checkpoints() {
  if (!config_->activation_checkpointing.profile) return;
  const nn::CheckpointCosts costs = activations_->take_costs();
  log_info("step {}: {} activation checkpoints, {:.1f} ms in forward; {} recomputed, {:.1f} ms", global_steps(),
           costs.checkpoints, costs.forward_seconds * 1e3, costs.recomputations, costs.recomputation_seconds * 1e3);
}

checkpoint::SaveOptions Engine::save_options() const { return engine::Checkpointing::options_of(*config_); }

void Engine::finish_saving() { checkpoints_->saver().finish(); }

std::string Engine::save_checkpoint(const std::string& folder, const std::string& tag,
                                    const nlohmann::json& client_state, const checkpoint::SaveOptions& options,
                                    const checkpoint::ClientTensors& tensors) {
  const Activity activity("save_checkpoint");
  if (gradients_pending_ || state_->accumulated(config_->batch.accumulation) != 0) {
    if (!boundary_override_) {
      throw Error(ErrorKind::kUsage, {"a checkpoint in the middle of gradient accumulation would lose gradients",
                                      "Engine::save_checkpoint", "save after the step() that ends accumulation"});
    }
  }
  finish_update();
  zero::take_replaced_data(*sharded_, zero::Unlike::kLeave);
  return checkpoints_->save(folder, tag, client_state, options, tensors);
}

bool Engine::save_16bit_model(const std::string& folder, const std::string& file, bool exclude_frozen_parameters) {
  const std::string key = "zero_optimization.stage3_gather_16bit_weights_on_model_save";
  if (config_->zero.stage == 3 && config_->value(key) != true) {
    if (world_->rank() == 0) log_warning("no weights were saved: at stage 3 saving them needs '{}': true", key);
    return false;
  }
  finish_update();
  zero::take_replaced_data(*sharded_, zero::Unlike::kLeave);
  checkpoint::save_16bit_weights(*sharded_, std::filesystem::path(folder) / file, exclude_frozen_parameters);
  return true;
}

std::optional<LoadedCheckpoint> Engine::load_checkpoint(const std::string& folder, const std::string& tag,
                                                        const checkpoint::LoadOptions& options) {
  checkpoints_->saver().finish();
  finish_update();
  checkpoint::LoadOptions taken = options;
  taken.rounds_weights |= config_->value("zero_optimization.load_from_fp32_weights") == false;
  return checkpoints_->load(folder, tag, taken);
}

void Engine::log_collectives() {
  const std::vector<comm::CollectiveCost> costs = comm::take_collective_log();
  if (world_->rank() == 0 && !costs.empty()) log_info("collectives of rank 0:\n{}", comm::table_of(costs));
}

void Engine::start_timeline(const std::string& path) {
  engine::check_timeline_path(path);
  timeline_ = path;
  start_tracing();
}

void Engine::write_timeline() {
  if (timeline_.empty()) {
    throw Error(ErrorKind::kUsage, {"there is no timeline to write", "Engine::write_timeline",
                                    "call start_timeline() before what it is to show"});
  }
  engine::write_timeline(*world_, std::exchange(timeline_, {}));
}

Gathered::Gathered(Engine& engine) : model_(engine.sharded_model()) { model_.hold_all(); }
Gathered::~Gathered() { model_.drop_all(); }

}  // namespace tessera
