// A model that can be trained, as the config.json of a Hugging Face folder describes it: what the run, the planner and
// the tasks need to know of it, before and while it is trained. models.h has the table of those that there are.
//
// A Model holds no parameters; network() makes the module that does, with declared ones (nn/layers.h). The names of its
// parameters are those of Hugging Face's class, so weights and exports need no translation. Safe to read from any
// thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "tessera/models/census.h"

namespace tessera::models {

// A config.json, read.
struct ModelConfig {
  nlohmann::json values;  // an object
  std::string path;       // for messages
};

// ErrorKind::kData where the folder or the file is missing, or the file is not a JSON object.
ModelConfig read_model_config(const std::string& folder);

// What a network reads in one forward pass, by Hugging Face's names: "input_ids", "attention_mask", "labels", …
class NamedTensors {
 public:
  void set(const std::string& name, at::Tensor tensor) { tensors_[name] = std::move(tensor); }

  // ErrorKind::kUsage where there is none of this name.
  const at::Tensor& at(const std::string& name) const;

  // Undefined where there is none.
  at::Tensor get(const std::string& name) const;

  template <class F>
  void for_each_tensor(F f) const {
    for (const auto& [name, tensor] : tensors_) f(tensor);
  }

 private:
  std::map<std::string, at::Tensor> tensors_;
};

// The module itself, made of layers and units of nn/.
class Network : public torch::nn::Module {
 public:
  // The loss added up over the batch's targets, in fp32: a scalar. Which tensors it reads is the class's; a label of
  // -100 is no target.
  virtual at::Tensor loss_sum(const NamedTensors& batch) = 0;

  // Keeps only each block's input and recomputes the rest in backward (nn/activation_checkpoint.h); off at first.
  virtual void checkpoint_activations(bool on) = 0;
};

class Model {
 public:
  virtual ~Model() = default;

  // Overrides every dropout probability of config.json.
  virtual void set_dropout(double probability) = 0;

  virtual std::shared_ptr<Network> network() const = 0;

  // Writes the initial value of the named parameter, by (seed, name) alone, so that every rank and every sharding
  // starts alike.
  virtual void initialize(uint64_t seed, const std::string& name, at::Tensor value) const = 0;

  // False for parameters that weight decay leaves alone.
  virtual bool decays(const std::string& name) const = 0;

  // What the bare model is called inside the class with a head, e.g. "bert."; see PretrainedWeights.
  virtual std::string base_prefix() const = 0;

  virtual int64_t vocab_size() const = 0;     // 0: takes no tokens
  virtual int64_t max_positions() const = 0;  // tokens of a sample at most; 0: no limit
  virtual int64_t hidden_size() const = 0;    // by which a ds_config's "auto" sizes go

  // What decides its activations; nothing where they are not those of a transformer.
  virtual std::optional<Architecture> architecture() const = 0;
};

// Of the model's own network and architecture. `class_name` and `where` make its source.
ModelCensus census_of(const Model& model, const std::string& class_name, const std::string& where);

// A generator's seed for one parameter, so that its values do not depend on which others are initialised.
uint64_t seed_of_parameter(uint64_t seed, const std::string& name);

}  // namespace tessera::models
