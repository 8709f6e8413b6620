#include "tessera/models/census.h"

#include <torch/nn/module.h>

#include <algorithm>
#include <unordered_map>

#include "tessera/base/error.h"
#include "tessera/models/model.h"
#include "tessera/nn/unit_tree.h"

namespace tessera::models {
namespace {

class Count {
 public:
  void add(const nn::ModuleOfUnit& visited) {
    if (visited.begins != nullptr) census_.units.push_back({visited.path});
    int64_t own = 0;
    for (const auto& item : visited.module.named_parameters(/*recurse=*/false)) {
      own += item.value().numel();
      add(item.value(), visited.unit);
    }
    census_.largest_layer = std::max(census_.largest_layer, own);
  }

  ModelCensus finish() {
    if (census_.units.front().numel == 0) census_.units.erase(census_.units.begin());
    return std::move(census_);
  }

 private:
  void add(const at::Tensor& parameter, size_t unit) {
    const auto [first, is_new] = first_unit_.try_emplace(parameter.unsafeGetTensorImpl(), unit);
    if (!is_new) {
      census_.head_shares_embeddings = census_.head_shares_embeddings || first->second != unit;
      return;
    }
    const int64_t numel = parameter.numel();
    census_.params += numel;
    census_.units[unit].numel += numel;
    if (!parameter.requires_grad()) {
      census_.frozen += numel;
      census_.units[unit].frozen += numel;
    }
    census_.units[unit].largest_tensor = std::max(census_.units[unit].largest_tensor, numel);
  }

  ModelCensus census_{.units = {{"model"}}};  // the first unit: what belongs to no other
  std::unordered_map<const void*, size_t> first_unit_;
};

}  // namespace

ModelCensus count_parameters(torch::nn::Module& module) {
  Count count;
  nn::visit_units(module, [&count](const nn::ModuleOfUnit& visited) { count.add(visited); });
  return count.finish();
}

const UnitCensus& ModelCensus::largest_block() const {
  TESSERA_INVARIANT(!units.empty());
  const auto smaller = [](const UnitCensus& a, const UnitCensus& b) { return a.numel < b.numel; };
  if (units.size() < 3) return *std::max_element(units.begin(), units.end(), smaller);
  return *std::max_element(units.begin() + 1, units.end() - 1, smaller);
}

ModelCensus census_of(const Model& model, const std::string& class_name, const std::string& where) {
  ModelCensus census = count_parameters(*model.network());
  census.source = fmt::format("{}, from {}", class_name, where);
  census.architecture = model.architecture();
  return census;
}

}  // namespace tessera::models
