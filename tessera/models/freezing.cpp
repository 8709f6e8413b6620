#include "tessera/models/freezing.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fnmatch.h>

#include <algorithm>
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/suggest.h"

namespace tessera::models {
namespace {

// The name itself, or that of a module above it.
bool names_parameter(const std::string& pattern, const std::string& name) {
  for (size_t end = name.size(); end != std::string::npos && end > 0; end = name.rfind('.', end - 1)) {
    if (fnmatch(pattern.c_str(), name.substr(0, end).c_str(), 0) == 0) return true;
  }
  return false;
}

class PartlyFrozenModel final : public Model {
 public:
  PartlyFrozenModel(std::unique_ptr<Model> model, std::vector<std::string> patterns)
      : model_(std::move(model)), patterns_(std::move(patterns)) {}

  std::shared_ptr<Network> network() const override {
    std::shared_ptr<Network> network = model_->network();
    for (auto& item : network->named_parameters()) {
      const bool is_frozen = std::any_of(patterns_.begin(), patterns_.end(), [&](const std::string& pattern) {
        return names_parameter(pattern, item.key());
      });
      if (is_frozen) item.value().requires_grad_(false);
    }
    return network;
  }
  void set_dropout(double probability) override { model_->set_dropout(probability); }
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
  std::vector<std::string> patterns_;
};

// Of parameters and of the modules that hold some.
std::vector<std::string> names_to_freeze(const Network& network) {
  std::set<std::string> names;
  for (const auto& item : network.named_parameters()) {
    const std::string& name = item.key();
    for (size_t end = name.size(); end != std::string::npos && end > 0; end = name.rfind('.', end - 1)) {
      names.insert(name.substr(0, end));
    }
  }
  return {names.begin(), names.end()};
}

std::vector<std::string> roots_of(const std::vector<std::string>& names) {
  std::vector<std::string> roots;
  std::copy_if(names.begin(), names.end(), std::back_inserter(roots),
               [](const std::string& name) { return std::count(name.begin(), name.end(), '.') <= 1; });
  return roots;
}

}  // namespace

std::unique_ptr<Model> with_frozen(std::unique_ptr<Model> model, const std::vector<std::string>& patterns,
                                   const std::string& where) {
  const std::vector<std::string> names = names_to_freeze(*model->network());
  for (const std::string& pattern : patterns) {
    const auto fits = [&](const std::string& name) { return fnmatch(pattern.c_str(), name.c_str(), 0) == 0; };
    if (std::any_of(names.begin(), names.end(), fits)) continue;
    const auto nearest = nearest_name(pattern, names);
    throw Error(ErrorKind::kConfig,
                {fmt::format("'{:.100}' is no parameter and no module of the model", pattern), where,
                 (nearest ? fmt::format("did you mean '{}'? ", *nearest) : std::string()) +
                     fmt::format("those at the top: {}", fmt::join(roots_of(names), ", "))});
  }
  auto frozen = std::make_unique<PartlyFrozenModel>(std::move(model), patterns);
  const auto parameters = frozen->network()->parameters();
  if (std::any_of(parameters.begin(), parameters.end(), [](const auto& each) { return each.requires_grad(); })) {
    return frozen;
  }
  throw Error(ErrorKind::kConfig, {"every parameter of the model is frozen", where, "leave some of them to train"});
}

}  // namespace tessera::models
