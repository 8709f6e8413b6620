// Trains any torch::nn::Module as a ds_config says: the C++ face of DeepSpeed's engine.
//
//   auto world = tessera::init_distributed();
//   auto engine = tessera::initialize(model, "ds_config.json", {.world = world});
//   for (…) {
//     at::Tensor loss = engine->forward(inputs, labels);  // model->forward, parameters gathered as needed
//     engine->backward(loss);
//     engine->step();                                     // updates once every gradient_accumulation_steps calls
//   }
//   engine->save_checkpoint("checkpoints");
//
// Each rank computes on its own micro batch; the gradient is the mean over ranks and accumulation steps. After
// initialize the parameters and their gradients belong to the engine. At stage 3 a parameter has no values outside of
// forward and backward; reading it then, running the model past the engine, or stepping an optimizer of one's own is an
// error that says so. Modules that derive from nn::UnitModule are gathered one at a time; a model without such is one
// unit. `model` is a std::shared_ptr to any module, or a holder that TORCH_MODULE made.
//
// Collective throughout: every rank makes the same calls in the same order. Errors are tessera::Error; after one that
// was thrown by forward, backward or step the engine is good for nothing but being destroyed. One thread at a time. The
// engine and the model must outlive the autograd graphs that they made.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <concepts>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <unordered_set>
#include <utility>
#include <vector>

#include "tessera/base/trace.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/comm/communicator.h"
#include "tessera/config/ds_config.h"
#include "tessera/engine/autocast.h"
#include "tessera/engine/model_tree.h"
#include "tessera/nn/activation_store.h"
#include "tessera/nn/unit_module.h"
#include "tessera/optim/loss_scaler.h"
#include "tessera/optim/optimizer.h"
#include "tessera/zero/sharded_model.h"

namespace tessera::optim {
class Schedule;
}
namespace tessera::zero {
class DelayedUpdate;
struct StepInput;
struct StepResult;
}  // namespace tessera::zero

namespace tessera {

struct InitializeOptions {
  std::shared_ptr<comm::Communicator> world;  // null: init_distributed()

  // Where the model trains: its parameters and buffers are moved there. Nothing: where its first parameter is.
  std::optional<at::Device> device = {};

  // Writes initial values of declared parameters (nn::declared_parameter). Must be given when the model has such; other
  // parameters start with what they hold on rank 0.
  zero::FillParameter fill;

  // True for parameters that weight decay leaves alone (biases and norms, usually). Null: it applies to all.
  std::function<bool(const std::string& name)> no_decay;

  // An optimizer of your own instead of the one that the configuration names, and its hyperparameters.
  std::shared_ptr<const optim::Optimizer> optimizer;
  optim::ParamGroup param_group = {};

  // Parameter groups of your own, for either optimizer, and which of them a parameter belongs to. A parameter without
  // one is not trained. Empty: one group with decay and one without.
  std::vector<optim::ParamGroup> param_groups = {};
  std::function<std::optional<size_t>(const std::string& name)> group_of;
};

struct BackwardOptions {
  bool divides_by_accumulation = true;  // the loss by gradient_accumulation_steps, as DeepSpeed does
  bool retain_graph = false;
};

struct LoadedCheckpoint {
  std::string path;
  nlohmann::json client_state;
  std::map<std::string, at::Tensor> rank_tensors = {};  // what this rank gave to save_checkpoint; empty at another
                                                        // number of ranks
};

// Whatever the model is made of: who runs it announces each module's forward. initialize() makes a ModelEngine, which
// does so by itself.
class Engine {
 public:
  Engine(engine::ModelTree model, const config::DsConfig& config, const InitializeOptions& options);
  ~Engine();

  // Around the forward of each module, by its number in the tree, the root's included; with all tensors that go in and
  // come out.
  void before_forward(size_t module, const std::vector<at::Tensor>& inputs);
  void after_forward(size_t module, const std::vector<at::Tensor>& outputs);

  // Loss: a scalar. Multiplies it by the loss scale, and reduces the gradients. Returns it divided as the options say,
  // without the loss scale. Instead of this, a program may call backward on scale(loss) by itself.
  at::Tensor backward(const at::Tensor& loss, const BackwardOptions& options = {});
  at::Tensor scale(const at::Tensor& loss) const;

  // After an exception in a forward or backward: the engine can go on with the next forward. Gradients that were
  // accumulated are forgotten.
  void abandon_pass();

  // Forgets the gradients since the last step.
  void zero_grad();

  // For a boundary that is set after the accumulation's last backward: reduces what the backwards left, at the stages
  // that wait for the boundary. Collective.
  void reduce_accumulated();

  // Counts a micro step; at the accumulation's boundary unscales, clips, updates and publishes. A step whose gradients
  // are not finite is skipped, on every rank; an error when the loss scale has no lower value left to try. A
  // zero::UnusedParameters where the configuration wants a gradient of every parameter.
  void step();

  // With tessera.delayed_update: waits for the update that is under way and publishes it; with tessera.lazy_publish:
  // for the weights that are under way. Before anything but a forward reads parameters; saving and loading do so
  // themselves. Collective.
  void finish_update();

  bool is_gradient_accumulation_boundary() const;
  // Takes the boundary out of the engine's counting: call before backward of each micro step.
  void set_gradient_accumulation_boundary(std::optional<bool> boundary) { boundary_override_ = boundary; }

  // From the next micro step on; between two accumulations.
  void set_batch(const config::BatchSizes& batch) { config_.batch = batch; }

  // `tag` empty: "global_step<N>". Returns the checkpoint's folder. See checkpoint/checkpoint.h. A save in the
  // background that fails is a checkpoint::SaveFailed from the end of a later step(), which has done its work by then,
  // or from finish_saving(), which waits for it.
  std::string save_checkpoint(const std::string& folder, const std::string& tag = "",
                              const nlohmann::json& client_state = nlohmann::json::object()) {
    return save_checkpoint(folder, tag, client_state, save_options());
  }
  // `rank_tensors`: of this rank alone.
  std::string save_checkpoint(const std::string& folder, const std::string& tag, const nlohmann::json& client_state,
                              const checkpoint::SaveOptions& options,
                              const std::map<std::string, at::Tensor>& rank_tensors = {});
  void finish_saving() { saver_->finish(); }

  // The weights alone, in the dtype of training, in <folder>/<file>; see checkpoint/save_16bit.h. Collective. False,
  // with a warning, at stage 3 without zero_optimization.stage3_gather_16bit_weights_on_model_save.
  bool save_16bit_model(const std::string& folder, const std::string& file = "model.safetensors",
                        bool exclude_frozen_parameters = false);

  // As the configuration's block `checkpoint` says.
  checkpoint::SaveOptions save_options() const;

  // `tag` empty: the one that `latest` names; nothing when the folder has no checkpoint at all.
  std::optional<LoadedCheckpoint> load_checkpoint(const std::string& folder, const std::string& tag = "",
                                                  const checkpoint::LoadOptions& options = {});

  // Of the last step that was taken: global L2 norm before clipping; infinite or NaN when the step was skipped.
  double get_global_grad_norm() const { return last_grad_norm_; }
  bool was_step_applied() const { return last_step_applied_; }
  double lr() const { return groups_.front().lr; }       // of the next step
  double loss_scale() const { return scaler_.scale(); }  // of the next backward
  int64_t global_steps() const { return global_steps_; }
  int64_t global_samples() const { return global_samples_; }
  int64_t skipped_steps() const { return skipped_steps_; }
  int64_t applied_steps() const { return global_steps_ - skipped_steps_; }
  int64_t micro_steps() const { return micro_steps_; }
  bool gradients_pending() const { return gradients_pending_; }
  std::vector<optim::ParamGroup>& param_groups() { return groups_; }  // a schedule of the configuration overwrites lr
  const optim::Optimizer& optimizer() const { return *optimizer_; }
  const config::DsConfig& config() const { return config_; }
  comm::Communicator& world() { return *world_; }
  at::Device device() const { return sharded_->device(); }  // where it trains
  // Parameters, gradients, master weights and optimizer state of this rank: in memory, and on disk.
  int64_t model_state_bytes() const { return sharded_->model_state_bytes().memory; }
  int64_t offloaded_bytes() const { return sharded_->model_state_bytes().disk; }
  zero::ShardedModel& sharded_model() { return *sharded_; }

 protected:
  std::optional<at::ScalarType> autocast_dtype() const { return autocast_dtype_; }

  // fp16.auto_cast: a floating tensor becomes the compute dtype; anything else passes.
  template <class Arg>
  decltype(auto) input(Arg&& arg) const {
    if constexpr (std::is_same_v<std::decay_t<Arg>, at::Tensor>) {
      const bool cast = config_.dtypes.cast_inputs && arg.defined() && at::isFloatingType(arg.scalar_type());
      return cast ? arg.to(at::kHalf) : at::Tensor(std::forward<Arg>(arg));
    } else {
      return std::forward<Arg>(arg);
    }
  }

  bool logs_steps_ = false;  // as steps_per_print says; Python's engine logs them in its own way

  static constexpr size_t kRootModule = 0;  // the engine announces it, whatever its type

  std::shared_ptr<nn::ActivationStore> activations_;  // what the model's activation checkpoints keep

 private:
  at::Tensor widened(const at::Tensor& loss) const;
  void begin_backward();
  void finish_backward();
  zero::StepResult update(const zero::StepInput& input);
  void apply_schedule();
  void count_skipped_step(const zero::StepResult& result);
  void log_checkpoint_costs();
  void log_step() const;
  nlohmann::json state() const;

  config::DsConfig config_;
  std::optional<at::ScalarType> autocast_dtype_;
  std::shared_ptr<comm::Communicator> world_;
  std::shared_ptr<const optim::Optimizer> optimizer_;
  std::unique_ptr<optim::Schedule> schedule_;
  std::vector<optim::ParamGroup> initial_groups_;
  std::vector<optim::ParamGroup> groups_;
  std::shared_ptr<zero::ShardedModel> sharded_;
  std::unique_ptr<zero::DelayedUpdate> delayed_;  // null: updates are not delayed
  std::unique_ptr<checkpoint::Saver> saver_;
  optim::LossScaler scaler_;
  int64_t first_schedule_step_ = 0;    // scheduler.params.last_batch_iteration + 1
  int64_t schedule_begins_after_ = 0;  // applied steps

  std::vector<std::string> module_names_;
  std::vector<TraceEvent> forwards_;  // that run, outermost first; empty unless tracing

  std::optional<bool> boundary_override_;
  bool gradients_pending_ = false;  // backward has run since the last step
  int64_t micro_steps_ = 0;
  int64_t global_steps_ = 0;
  int64_t global_samples_ = 0;
  int64_t skipped_steps_ = 0;
  double last_grad_norm_ = 0;
  bool last_step_applied_ = false;
};

// Of a C++ model, whose units announce themselves.
class ModuleEngine : public Engine, private nn::UnitObserver {
 public:
  ModuleEngine(std::shared_ptr<torch::nn::Module> model, const config::DsConfig& config,
               const InitializeOptions& options);
  ~ModuleEngine() override;

  void train(bool on = true) { model_->train(on); }
  void eval() { model_->eval(); }

 protected:
  // Once an optimizer step: ErrorKind::kUsage where the model has a parameter by now that nobody would train.
  void require_known_parameters();

 private:
  void before_forward(size_t module, const std::vector<at::Tensor>& inputs) override;
  void after_forward(size_t module, const std::vector<at::Tensor>& outputs) override;

  std::shared_ptr<torch::nn::Module> model_;
  std::unordered_set<std::string> names_;  // of its parameters, when the engine was made
  int64_t next_check_ = 0;                 // the micro step from which require_known_parameters() looks again
  std::vector<nn::UnitModuleBase*> announcing_;
};

// An engine that knows the model's type, and so can call its forward.
template <class Model>
class ModelEngine : public ModuleEngine {
 public:
  ModelEngine(std::shared_ptr<Model> model, const config::DsConfig& config, const InitializeOptions& options)
      : ModuleEngine(engine::required_model(model), config, options), typed_model_(std::move(model)) {}

  template <class... Args>
  auto forward(Args&&... args) {
    return call([](Model& model, auto&&... values) { return model.forward(std::forward<decltype(values)>(values)...); },
                std::forward<Args>(args)...);
  }

  // For models with several entries: call([](Model& m, auto& batch) { return m.loss(batch); }, batch).
  template <class Function, class... Args>
  auto call(Function function, Args&&... args) {
    const engine::Autocast autocast(device().type(), autocast_dtype());
    const nn::ActivationStore::Scope scope(activations_);
    require_known_parameters();
    Engine::before_forward(kRootModule, nn::tensors_in(args...));
    auto output = function(*typed_model_, input(std::forward<Args>(args))...);
    Engine::after_forward(kRootModule, nn::tensors_in(output));
    return output;
  }

  Model& module() { return *typed_model_; }

 private:
  std::shared_ptr<Model> typed_model_;
};

// The configuration from a file, for the world that `options` names.
config::DsConfig load_config_for(const std::string& path, const InitializeOptions& options);

template <class Model>
std::unique_ptr<ModelEngine<Model>> initialize(std::shared_ptr<Model> model, const config::DsConfig& config,
                                               const InitializeOptions& options = {}) {
  return std::make_unique<ModelEngine<Model>>(std::move(model), config, options);
}

template <class Model>
std::unique_ptr<ModelEngine<Model>> initialize(std::shared_ptr<Model> model, const std::string& config_path,
                                               InitializeOptions options = {}) {
  if (!options.world) options.world = comm::init_distributed();
  const config::DsConfig config = load_config_for(config_path, options);
  return std::make_unique<ModelEngine<Model>>(std::move(model), config, options);
}

// What TORCH_MODULE(Net) makes of NetImpl, or torch::nn::ModuleHolder<NetImpl> itself.
template <class T>
concept ModuleHolder = std::is_base_of_v<torch::detail::ModuleHolderIndicator, T>;

// The engine shares the model with the holder, and is one over what it holds: engine->module() is a NetImpl.
template <ModuleHolder Holder>
std::unique_ptr<ModelEngine<typename Holder::ContainedType>> initialize(const Holder& model,
                                                                        const config::DsConfig& config,
                                                                        const InitializeOptions& options = {}) {
  return initialize(model.is_empty() ? nullptr : model.ptr(), config, options);
}

template <ModuleHolder Holder>
std::unique_ptr<ModelEngine<typename Holder::ContainedType>> initialize(const Holder& model,
                                                                        const std::string& config_path,
                                                                        const InitializeOptions& options = {}) {
  return initialize(model.is_empty() ? nullptr : model.ptr(), config_path, options);
}

}  // namespace tessera
