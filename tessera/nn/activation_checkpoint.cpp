#include "tessera/nn/activation_checkpoint.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <mutex>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/nn/activation_store.h"

namespace tessera::nn::detail {
namespace {

using torch::autograd::SavedVariable;
using torch::autograd::SavedVariableHooks;

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

constexpr const char* kRepeat =
    "compute only from the inputs, the parameters and random numbers of the default generators, capture by value, and "
    "call train() or eval() outside forward and backward";

// What is put back for the time of a recomputation
// -----------------------------------------------------------------------------

// The default generators of the CPU and of the devices on which the inputs lie.
class RandomStates {
 public:
  explicit RandomStates(const std::vector<at::Tensor>& inputs) {
    std::vector<at::Device> devices = {at::kCPU};
    for (const at::Tensor& input : inputs) {
      if (!input.defined() || !input.device().has_index()) continue;
      if (std::find(devices.begin(), devices.end(), input.device()) == devices.end()) devices.push_back(input.device());
    }
    for (const at::Device device : devices) states_.push_back({device, {}});
    for (auto& [device, state] : states_) {
      at::Generator generator = at::globalContext().defaultGenerator(device);
      const std::lock_guard lock(generator.mutex());
      state = generator.get_state();
    }
  }

  void set() const {
    for (const auto& [device, state] : states_) {
      at::Generator generator = at::globalContext().defaultGenerator(device);
      const std::lock_guard lock(generator.mutex());
      generator.set_state(state);
    }
  }

 private:
  std::vector<std::pair<at::Device, at::Tensor>> states_;
};

class AutocastState {
 public:
  AutocastState() {
    for (size_t i = 0; i < kDeviceTypes.size(); ++i) {
      enabled_[i] = at::autocast::is_autocast_enabled(kDeviceTypes[i]);
      dtypes_[i] = at::autocast::get_autocast_dtype(kDeviceTypes[i]);
    }
    caches_ = at::autocast::is_autocast_cache_enabled();
  }

  void set() const {
    for (size_t i = 0; i < kDeviceTypes.size(); ++i) {
      at::autocast::set_autocast_enabled(kDeviceTypes[i], enabled_[i]);
      at::autocast::set_autocast_dtype(kDeviceTypes[i], dtypes_[i]);
    }
    at::autocast::set_autocast_cache_enabled(caches_);
  }

  // The casts of a recomputation are its own: none is taken from the cache of whoever runs backward, none left there.
  AutocastState without_cache() const {
    AutocastState state = *this;
    state.caches_ = false;
    return state;
  }

 private:
  static constexpr std::array kDeviceTypes = {at::kCPU, at::kCUDA};
  std::array<bool, kDeviceTypes.size()> enabled_;
  std::array<at::ScalarType, kDeviceTypes.size()> dtypes_;
  bool caches_;
};

// Puts a state in place and, when it goes, the one of before.
template <class State>
class Restored {
 public:
  Restored(const State& wanted, State present) : before_(std::move(present)) { wanted.set(); }
  ~Restored() { before_.set(); }
  Restored(const Restored&) = delete;
  Restored& operator=(const Restored&) = delete;

 private:
  State before_;
};

struct TensorShape {
  std::vector<int64_t> sizes;
  at::ScalarType dtype;

  explicit TensorShape(const at::Tensor& tensor) : sizes(tensor.sizes().vec()), dtype(tensor.scalar_type()) {}
  bool operator==(const TensorShape&) const = default;
  std::string text() const { return fmt::format("{} ({})", at::toString(dtype), fmt::join(sizes, ", ")); }
};

}  // namespace

// What autograd saves
// ----------------------------------------------------------------------------------------------------

// Who decides about the tensors that autograd saves on this thread.
class TensorSaver {
 public:
  TensorSaver();
  virtual ~TensorSaver();
  TensorSaver(const TensorSaver&) = delete;
  TensorSaver& operator=(const TensorSaver&) = delete;
  virtual std::unique_ptr<SavedVariableHooks> hooks() = 0;

 private:
  TensorSaver* outer_;
};

namespace {

thread_local TensorSaver* innermost_saver = nullptr;

// Autograd asks its engine how each tensor is to be saved, which is how torch.autograd.graph.saved_tensors_hooks works.
// In C++ there is no other way to be asked. Apart from the answer it is LibTorch's own engine.
class AskingEngine : public torch::autograd::Engine {
 public:
  static Engine& instance() {
    static AskingEngine engine;
    return engine;
  }
  ~AskingEngine() override { stop(); }

  std::unique_ptr<SavedVariableHooks> get_default_saved_variable_hooks() override {
    return innermost_saver == nullptr ? nullptr : innermost_saver->hooks();
  }
};

void install_engine() {
  static const bool installed = [] {
    using torch::autograd::Engine;
    if (&Engine::get_default_engine() != &Engine::get_base_engine()) {
      throw Error(ErrorKind::kUsage, {"another library has replaced autograd's engine", "nn::checkpoint",
                                      "under Python use torch.utils.checkpoint"});
    }
    torch::autograd::set_default_engine_stub(&AskingEngine::instance);
    return true;
  }();
  static_cast<void>(installed);
}

}  // namespace

TensorSaver::TensorSaver() : outer_(std::exchange(innermost_saver, this)) {}
TensorSaver::~TensorSaver() { innermost_saver = outer_; }

// The tensors of one call of a checkpointed function, by the order in which autograd saved them, and all that is needed
// to have them again. Owned by the nodes of the graph that saved them.
class LeftOutTensors {
 public:
  LeftOutTensors(std::function<void(const std::vector<at::Tensor>&)> run_again, const std::vector<at::Tensor>& inputs)
      : run_again_(std::move(run_again)), store_(ActivationStore::current()), random_(inputs) {
    for (const at::Tensor& input : inputs) {
      Input& kept = inputs_.emplace_back();
      kept.requires_grad = input.defined() && input.requires_grad();
      if (innermost_saver == nullptr) {
        kept.tensor = store_->keep(inputs_.size() - 1, input);
      } else if (input.defined()) {
        kept.saved_by_outer = SavedVariable(input.detach(), /*is_output=*/false);  // the checkpoint around this one
      }
    }
    ++store_->costs().checkpoints;
  }

  void end_of_forward() {
    forward_is_over_ = true;
    store_->costs().forward_seconds += seconds_since(begin_);
  }

  size_t leave_out(const at::Tensor& tensor) {
    tensors_.push_back({.shape = TensorShape(tensor)});
    return tensors_.size() - 1;
  }

  // Hands a tensor out. Whoever asks for it once more (a second backward over a retained graph) has it computed again.
  at::Tensor take(size_t index) {
    if (!tensors_[index].again.defined()) compute_again();
    TESSERA_INVARIANT(tensors_[index].again.defined());
    return std::exchange(tensors_[index].again, {});
  }

  // Its node is gone, or has been through backward.
  void forget(size_t index) { tensors_[index] = {.shape = std::move(tensors_[index].shape), .wanted = false}; }

 private:
  struct Input {
    KeptTensor tensor;
    std::optional<SavedVariable> saved_by_outer;
    bool requires_grad = false;
  };
  struct Saved {
    TensorShape shape;
    at::Tensor again;  // from the recomputation until it is taken
    bool wanted = true;
  };
  class Recomputation;

  std::vector<at::Tensor> restored_inputs() const {
    std::vector<at::Tensor> inputs;
    for (const Input& kept : inputs_) {
      const at::Tensor input = kept.saved_by_outer ? kept.saved_by_outer->unpack().detach() : kept.tensor.restore();
      inputs.push_back(kept.requires_grad ? input.requires_grad_(true) : input);
    }
    return inputs;
  }

  void compute_again();

  std::function<void(const std::vector<at::Tensor>&)> run_again_;
  std::shared_ptr<ActivationStore> store_;
  RandomStates random_;
  AutocastState autocast_;
  std::vector<Input> inputs_;
  std::vector<Saved> tensors_;
  const Clock::time_point begin_ = Clock::now();
  bool forward_is_over_ = false;
};

namespace {

class LeftOut : public SavedVariableHooks {
 public:
  explicit LeftOut(std::shared_ptr<LeftOutTensors> tensors) : tensors_(std::move(tensors)) {}
  ~LeftOut() override {
    if (index_) tensors_->forget(*index_);
  }
  void call_pack_hook(const at::Tensor& tensor) override { index_ = tensors_->leave_out(tensor); }
  at::Tensor call_unpack_hook() override { return tensors_->take(*index_); }

 private:
  std::shared_ptr<LeftOutTensors> tensors_;
  std::optional<size_t> index_;
};

class LeavesOut : public TensorSaver {
 public:
  explicit LeavesOut(std::shared_ptr<LeftOutTensors> tensors) : tensors_(std::move(tensors)) {}
  std::unique_ptr<SavedVariableHooks> hooks() override { return std::make_unique<LeftOut>(tensors_); }

 private:
  std::shared_ptr<LeftOutTensors> tensors_;
};

}  // namespace

// Hands what the function saves when it runs again to those who wait for it.
class LeftOutTensors::Recomputation : public TensorSaver {
 public:
  explicit Recomputation(LeftOutTensors& of) : of_(of) {}

  std::unique_ptr<SavedVariableHooks> hooks() override { return std::make_unique<Hooks>(*this); }

  void check_count() const {
    // A function that runs backward itself comes here before all is saved.
    if (of_.forward_is_over_ ? count_ == of_.tensors_.size() : count_ >= of_.tensors_.size()) return;
    throw Error(ErrorKind::kUsage, {fmt::format("a checkpointed function saved {} for backward, but {} when it "
                                                "ran again",
                                                count_of(static_cast<int64_t>(of_.tensors_.size()), "tensor"), count_),
                                    "nn::checkpoint", kRepeat});
  }

 private:
  // The recomputed graph is thrown away, unless the function itself runs backward: then it needs the tensor too.
  class Hooks : public SavedVariableHooks {
   public:
    explicit Hooks(Recomputation& recomputation) : recomputation_(recomputation) {}
    void call_pack_hook(const at::Tensor& tensor) override {
      tensor_ = tensor.detach();
      recomputation_.hand_over(tensor_);
    }
    at::Tensor call_unpack_hook() override { return tensor_; }

   private:
    Recomputation& recomputation_;  // there while the graph is recorded, which is when pack hooks are called
    at::Tensor tensor_;
  };

  void hand_over(const at::Tensor& tensor) {
    const size_t index = count_++;
    if (index >= of_.tensors_.size()) return;  // check_count says so, with both numbers
    Saved& saved = of_.tensors_[index];
    if (const TensorShape shape(tensor); shape != saved.shape) {
      throw Error(ErrorKind::kUsage, {fmt::format("a checkpointed function saved a tensor {} for backward, but {} when "
                                                  "it ran again",
                                                  saved.shape.text(), shape.text()),
                                      "nn::checkpoint", kRepeat});
    }
    if (saved.wanted) saved.again = tensor;
  }

  LeftOutTensors& of_;
  size_t count_ = 0;
};

void LeftOutTensors::compute_again() {
  const auto begin = Clock::now();
  const std::vector<at::Tensor> inputs = restored_inputs();
  const Restored<RandomStates> random(random_, RandomStates(inputs));
  const Restored<AutocastState> autocast(autocast_.without_cache(), AutocastState());
  const at::AutoGradMode records(true);
  const ActivationStore::Scope scope(store_);
  {
    Recomputation recomputation(*this);
    run_again_(inputs);
    recomputation.check_count();
  }
  ++store_->costs().recomputations;
  store_->costs().recomputation_seconds += seconds_since(begin);
}

CheckpointRecording::CheckpointRecording(std::function<void(const std::vector<at::Tensor>& inputs)> run_again,
                                         const std::vector<at::Tensor>& inputs) {
  install_engine();
  left_out_ = std::make_shared<LeftOutTensors>(std::move(run_again), inputs);
  saver_ = std::make_unique<LeavesOut>(left_out_);
}

CheckpointRecording::~CheckpointRecording() { left_out_->end_of_forward(); }

}  // namespace tessera::nn::detail
