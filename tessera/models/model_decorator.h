// A model that is another one but for what a class of its own overrides; of its network, network_over().
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "tessera/models/model.h"
#include "tessera/nn/tensor_axis.h"

namespace tessera::models {

class ModelDecorator : public Model {
 public:
  explicit ModelDecorator(std::unique_ptr<Model> model) : model_(std::move(model)) {}

  void set_dropout(double probability) override { model_->set_dropout(probability); }
  void set_router_losses(std::optional<double> balance, std::optional<double> z) override {
    model_->set_router_losses(balance, z);
  }
  std::shared_ptr<Network> network() const final { return network_over({}); }
  std::shared_ptr<Network> network_over(const nn::TensorAxis& axis) const override {
    return model_->network_over(axis);
  }
  void initialize(uint64_t seed, const std::string& name, at::Tensor value) const override {
    model_->initialize(seed, name, std::move(value));
  }
  bool decays(const std::string& name) const override { return model_->decays(name); }
  std::string base_prefix() const override { return model_->base_prefix(); }
  int64_t vocab_size() const override { return model_->vocab_size(); }
  int64_t max_positions() const override { return model_->max_positions(); }
  int64_t hidden_size() const override { return model_->hidden_size(); }
  std::optional<Architecture> architecture() const override { return model_->architecture(); }

 private:
  std::unique_ptr<Model> model_;
};

}  // namespace tessera::models
