// A model of which only an adapter is trained: LoRA's matrices (nn/lora.h) beside frozen ones, and modules that are
// trained whole. In folders, the format of the package PEFT: adapter_config.json and adapter_model.safetensors, whose
// names are those of the parameters behind "base_model.model.".
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tessera/models/model.h"
#include "tessera/nn/layers.h"
#include "tessera/nn/lora.h"

namespace tessera::models {

struct AdapterOptions {
  nn::LoraOptions lora;

  // The linear layers that get a branch: "all-linear" (all but the output layer), the end of a module's name
  // ("q_proj"), or a pattern of the whole name ("model.layers.1*.self_attn.*").
  std::vector<std::string> targets = {"all-linear"};

  // Trained whole, by the end of their names: "lm_head".
  std::vector<std::string> modules_to_save = {};
};

// The model with an adapter: its network() has the branches, and everything but them and modules_to_save frozen.
// Initial values of branches follow Hu et al.: A as PyTorch's Linear (Kaiming uniform, a = sqrt(5)), B zero; those of
// DoRA's magnitudes, which follow from the layer's weight, are InitialValues' to give.
//
// ErrorKind::kConfig, at once, where a target or a module to save fits none of the network's, with those there are;
// `where`: of the options, for the message.
std::unique_ptr<Model> with_adapter(std::unique_ptr<Model> model, const AdapterOptions& options,
                                    const std::string& where);

// A layer that an adapter can be beside.
struct AdaptableLayer {
  std::string name;
  std::shared_ptr<torch::nn::Module> module;
  nn::Adaptable* adaptable;  // the module
};

// In the network's order.
std::vector<AdaptableLayer> adaptable_layers(const Network& network);

// Those of its layers that have an adapter, to run it with and without. Borrows the network; adapters are on again when
// this ends.
class AdapterSwitch {
 public:
  explicit AdapterSwitch(Network& network);
  ~AdapterSwitch() { enable(true); }
  AdapterSwitch(const AdapterSwitch&) = delete;
  AdapterSwitch& operator=(const AdapterSwitch&) = delete;

  void enable(bool on);

 private:
  std::vector<nn::Adaptable*> layers_;
};

// adapter_config.json of these options, for a model that lies at `base`.
nlohmann::ordered_json peft_config(const Model& adapted, const AdapterOptions& options, const std::string& base);

// An adapter's folder, read. ErrorKind::kData where a file is missing or damaged, or asks for what is not supported.
struct PeftFolder {
  AdapterOptions options;
  std::string base;  // where the model lies that it adapts; may be empty
};
PeftFolder read_peft_folder(const std::string& folder);

// The folder of the model that it adapts. ErrorKind::kData where that is not said, or not on this machine.
std::string base_of(const std::string& folder);

// Whether it is one.
bool is_peft_folder(const std::string& folder);

}  // namespace tessera::models
