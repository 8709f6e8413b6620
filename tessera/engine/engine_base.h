// The engine, whatever the model is made of: who runs the model announces each module's forward. initialize() makes a
// ModelEngine (engine.h), which does so by itself; Python's door announces them from its own hooks.
//
// A facade over training state (training_state.h), steps (stepping.h) and checkpoints (checkpointing.h); wiring.h turns
// the configuration into parts. Collective, errors and threads: see engine.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/comm/group.h"
#include "tessera/engine/options.h"
#include "tessera/optim/optimizer.h"

namespace tessera {

struct TraceEvent;

namespace config {
struct BatchSizes;
struct DsConfig;
}  // namespace config
namespace engine {
class Checkpointing;
class Stepping;
class StepTimes;
class TrainingState;
struct ModelTree;
}  // namespace engine
namespace nn {
class ActivationStore;
class DeferredWeights;
}  // namespace nn
namespace optim {
class RunningSchedule;
}
namespace zero {
class ShardedModel;
}

class Engine {
 public:
  Engine(engine::ModelTree model, const config::DsConfig& config, const InitializeOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Around the forward of each module, by its number in the tree, the root's included; with all tensors that go in and
  // come out.
  void before_forward(size_t module, const std::vector<at::Tensor>& inputs);
  void after_forward(size_t module, const std::vector<at::Tensor>& outputs);

  // Loss: a scalar. Multiplies it by the loss scale, and reduces the gradients. Returns it divided as the options say,
  // without the loss scale. Instead of this, a program may call backward on scale(loss) by itself.
  at::Tensor backward(const at::Tensor& loss, const BackwardOptions& options = {});
  at::Tensor scale(const at::Tensor& loss) const;

  // Of a part of the model whose outputs others went on from: from the gradients that came back, which have the loss
  // scale already. Of those outputs alone that require one; there may be none.
  void backward_from(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& gradients,
                     bool puts_off_weights = false);

  // The rest of a backward that put weights off.
  void backward_weights(nn::DeferredWeights& weights);

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
  // zero::UnusedParameters where the configuration wants a gradient of every parameter. `samples`: that such a step
  // took, on all ranks together; 0: train_batch_size().
  void step(int64_t samples = 0);

  // With tessera.delayed_update: waits for the update that is under way and publishes it; with tessera.lazy_publish:
  // for the weights that are under way. Before anything but a forward reads parameters; saving and loading do so
  // themselves. Collective.
  void finish_update();

  bool is_gradient_accumulation_boundary() const;
  // Takes the boundary out of the engine's counting: call before backward of each micro step.
  void set_gradient_accumulation_boundary(std::optional<bool> boundary) { boundary_override_ = boundary; }

  // From the next micro step on; between two accumulations.
  void set_batch(const config::BatchSizes& batch);

  // `tag` empty: "global_step<N>". Returns the checkpoint's folder. See checkpoint/checkpoint.h. A save in the
  // background that fails is a checkpoint::SaveFailed from the end of a later step(), which has done its work by then,
  // or from finish_saving(), which waits for it.
  std::string save_checkpoint(const std::string& folder, const std::string& tag = "",
                              const nlohmann::json& client_state = nlohmann::json::object()) {
    return save_checkpoint(folder, tag, client_state, save_options());
  }
  std::string save_checkpoint(const std::string& folder, const std::string& tag, const nlohmann::json& client_state,
                              const checkpoint::SaveOptions& options, const checkpoint::ClientTensors& tensors = {});
  void finish_saving();

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
  double get_global_grad_norm() const;
  bool was_step_applied() const;
  double lr() const;          // of the next step
  double loss_scale() const;  // of the next backward
  int64_t global_steps() const;
  int64_t global_samples() const;
  int64_t skipped_steps() const;
  int64_t applied_steps() const;
  int64_t micro_steps() const;
  bool gradients_pending() const { return gradients_pending_; }
  std::vector<optim::ParamGroup>& param_groups();  // the schedule overwrites lr
  // A program's own, instead of the configuration's: see engine/training_state.h.
  void set_schedule(std::shared_ptr<optim::RunningSchedule> schedule);
  const optim::Optimizer& optimizer() const { return *optimizer_; }

  // In samples: train_batch_size = train_micro_batch_size_per_gpu * gradient_accumulation_steps * batch_group().size().
  int64_t train_batch_size() const;
  int64_t train_micro_batch_size_per_gpu() const;
  int64_t gradient_accumulation_steps() const;
  const config::DsConfig& config() const { return *config_; }  // resolved: config/ds_config.h

  comm::Group& world() { return *world_; }
  comm::Group& data_group();   // the ranks that train on different data: all, unless a mesh says otherwise
  comm::Group& batch_group();  // … on different samples: ranks that share sequences read the same ones
  at::Device device() const;   // where it trains
  // Parameters, gradients, master weights and optimizer state of this rank: in memory, and on disk.
  int64_t model_state_bytes() const;
  int64_t offloaded_bytes() const;
  int64_t param_count() const;  // elements on this rank before sharding, shared ones counted once
  zero::ShardedModel& sharded_model() { return *sharded_; }

  // With comms_logger.enabled: logs on rank 0 what its collectives cost since the last call.
  void log_collectives();

  // What the ranks do from here on, and when, as a file in Chrome's trace format: open it in chrome://tracing or
  // ui.perfetto.dev. ErrorKind::kUsage where no file can be written there.
  void start_timeline(const std::string& path);
  void write_timeline();  // Collective. ErrorKind::kMachine where that fails

 protected:
  // Around a forward: autocast as the configuration says, and a place for what activation checkpoints keep.
  class ForwardScope {
   public:
    explicit ForwardScope(const Engine& engine);
    ~ForwardScope();
    ForwardScope(const ForwardScope&) = delete;
    ForwardScope& operator=(const ForwardScope&) = delete;

   private:
    struct Guards;
    std::unique_ptr<Guards> guards_;
  };

  // fp16.auto_cast: a floating tensor becomes the compute dtype; anything else passes.
  template <class Arg>
  decltype(auto) input(Arg&& arg) const {
    if constexpr (std::is_same_v<std::decay_t<Arg>, at::Tensor>) {
      return casts(arg) ? arg.to(at::kHalf) : at::Tensor(std::forward<Arg>(arg));
    } else {
      return std::forward<Arg>(arg);
    }
  }

  // As steps_per_print and wall_clock_breakdown say; Python's engine logs them in its own way.
  bool logs_steps_ = false;

  static constexpr size_t kRootModule = 0;  // the engine announces it, whatever its type

 private:
  Engine(engine::ModelTree model, const config::DsConfig& config, const InitializeOptions& options,
         std::shared_ptr<comm::Mesh> mesh);

  bool casts(const at::Tensor& input) const;
  at::Tensor widened(const at::Tensor& loss) const;
  void take_step(int64_t samples);
  void begin_backward();
  void finish_backward();
  void log_memory() const;
  void log_activation_checkpoints();

  std::unique_ptr<config::DsConfig> config_;
  std::optional<at::ScalarType> autocast_dtype_;
  std::shared_ptr<nn::ActivationStore> activations_;  // what the model's activation checkpoints keep
  std::shared_ptr<comm::Group> world_;
  std::shared_ptr<const optim::Optimizer> optimizer_;
  std::shared_ptr<zero::ShardedModel> sharded_;
  std::unique_ptr<engine::TrainingState> state_;
  std::unique_ptr<engine::Stepping> stepping_;
  std::unique_ptr<engine::Checkpointing> checkpoints_;
  std::unique_ptr<engine::StepTimes> times_;

  std::vector<std::string> module_names_;
  std::vector<TraceEvent> forwards_;  // that run, outermost first; empty unless tracing

  std::string timeline_;  // the file; empty: none was started

  std::optional<bool> boundary_override_;
  bool gradients_pending_ = false;  // backward has run since the last step
};

// While it lives all parameters of the engine's model are whole on every rank, to look at them or to run the model
// without the engine. Collective at stage 3; elsewhere it does nothing. What is written to the parameters meanwhile is
// lost.
//
//   { tessera::Gathered whole(*engine);  … read parameters … }
class Gathered {
 public:
  explicit Gathered(Engine& engine);
  ~Gathered();
  Gathered(const Gathered&) = delete;
  Gathered& operator=(const Gathered&) = delete;

 private:
  zero::ShardedModel& model_;  // borrowed
};

}  // namespace tessera
