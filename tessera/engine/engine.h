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
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "tessera/engine/engine_base.h"
#include "tessera/nn/unit_module.h"

namespace tessera {

// A ds_config: a file, or the values themselves. It is read when an engine is made, because what it leaves open follows
// from the number of ranks. ErrorKind::kConfig, with all that is wrong.
class Configuration {
 public:
  Configuration(const char* path);
  Configuration(const std::string& path);
  Configuration(const nlohmann::json& values);
  Configuration(const config::DsConfig& resolved);

  config::DsConfig for_ranks(int data_parallel_size) const;

 private:
  std::function<config::DsConfig(int data_parallel_size)> read_;
};

// Of a C++ model, whose units announce themselves.
class ModuleEngine : public Engine, private nn::UnitObserver {
 public:
  // ErrorKind::kUsage where `model` is null.
  ModuleEngine(std::shared_ptr<torch::nn::Module> model, const Configuration& config, InitializeOptions options);
  ~ModuleEngine() override;

  void train(bool on = true) { model_->train(on); }
  void eval() { model_->eval(); }

 protected:
  // Once an optimizer step: ErrorKind::kUsage where the model has a parameter by now that nobody would train.
  void require_known_parameters();

 private:
  struct Parts;  // what the constructor's arguments come to
  explicit ModuleEngine(Parts parts);

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
  ModelEngine(std::shared_ptr<Model> model, const Configuration& config, InitializeOptions options)
      : ModuleEngine(model, config, std::move(options)), typed_model_(std::move(model)) {}

  template <class... Args>
  auto forward(Args&&... args) {
    return call([](Model& model, auto&&... values) { return model.forward(std::forward<decltype(values)>(values)...); },
                std::forward<Args>(args)...);
  }

  // For models with several entries: call([](Model& m, auto& batch) { return m.loss(batch); }, batch).
  template <class Function, class... Args>
  auto call(Function function, Args&&... args) {
    const ForwardScope scope(*this);
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

template <class Model>
std::unique_ptr<ModelEngine<Model>> initialize(std::shared_ptr<Model> model, const Configuration& config,
                                               InitializeOptions options = {}) {
  return std::make_unique<ModelEngine<Model>>(std::move(model), config, std::move(options));
}

// What TORCH_MODULE(Net) makes of NetImpl, or torch::nn::ModuleHolder<NetImpl> itself.
template <class T>
concept ModuleHolder = std::is_base_of_v<torch::detail::ModuleHolderIndicator, T>;

// The engine shares the model with the holder, and is one over what it holds: engine->module() is a NetImpl.
template <ModuleHolder Holder>
std::unique_ptr<ModelEngine<typename Holder::ContainedType>> initialize(const Holder& model,
                                                                        const Configuration& config,
                                                                        InitializeOptions options = {}) {
  return initialize(model.is_empty() ? nullptr : model.ptr(), config, std::move(options));
}

}  // namespace tessera
