#include "tessera/models/freezing.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fnmatch.h>

#include <algorithm>
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/suggest.h"
#include "tessera/models/model_decorator.h"

namespace tessera::models {
namespace {

// A parameter's own, and those of the modules above it.
std::vector<std::string> names_up_from(const std::string& parameter) {
  std::vector<std::string> names;
  for (size_t end = parameter.size(); end != std::string::npos && end > 0; end = parameter.rfind('.', end - 1)) {
    names.push_back(parameter.substr(0, end));
  }
  return names;
}

bool fits_pattern(const std::string& pattern, const std::string& name) {
  return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

bool names_parameter(const std::string& pattern, const std::string& parameter) {
  const std::vector<std::string> names = names_up_from(parameter);
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) { return fits_pattern(pattern, name); });
}

class PartlyFrozenModel final : public ModelDecorator {
 public:
  PartlyFrozenModel(std::unique_ptr<Model> model, std::vector<std::string> patterns)
      : ModelDecorator(std::move(model)), patterns_(std::move(patterns)) {}

  std::shared_ptr<Network> network_over(const nn::TensorAxis& axis) const override {
    std::shared_ptr<Network> network = ModelDecorator::network_over(axis);
    for (auto& item : network->named_parameters()) {
      const bool is_frozen = std::any_of(patterns_.begin(), patterns_.end(), [&](const std::string& pattern) {
        return names_parameter(pattern, item.key());
      });
      if (is_frozen) item.value().requires_grad_(false);
    }
    return network;
  }

 private:
  std::vector<std::string> patterns_;
};

// Of parameters and of the modules that hold some.
std::vector<std::string> names_to_freeze(const Network& network) {
  std::set<std::string> names;
  for (const auto& item : network.named_parameters()) {
    for (std::string& name : names_up_from(item.key())) names.insert(std::move(name));
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
    if (std::any_of(names.begin(), names.end(), [&](const auto& name) { return fits_pattern(pattern, name); }))
      continue;
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
