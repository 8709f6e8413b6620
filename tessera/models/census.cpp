#include "tessera/models/census.h"

#include <torch/nn/module.h>

#include <algorithm>
#include <unordered_map>

#include "tessera/base/error.h"
#include "tessera/nn/unit_module.h"

namespace tessera::models {
namespace {

class Count {
 public:
  // The parameters of a module that announces nothing belong to the unit around it, as in engine/model_tree.h.
  void walk(torch::nn::Module& module, const std::string& path, size_t unit) {
    if (!path.empty() && dynamic_cast<nn::UnitModuleBase*>(&module) != nullptr) {
      unit = census_.units.size();
      census_.units.push_back({path});
    }
    int64_t own = 0;
    for (const auto& item : module.named_parameters(/*recurse=*/false)) {
      own += item.value().numel();
      add(item.value(), unit);
    }
    census_.largest_layer = std::max(census_.largest_layer, own);
    for (const auto& item : module.named_children()) {
      walk(*item.value(), path.empty() ? item.key() : path + "." + item.key(), unit);
    }
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
    census_.units[unit].largest_tensor = std::max(census_.units[unit].largest_tensor, numel);
  }

  ModelCensus census_{.units = {{"model"}}};  // the first unit: what belongs to no other
  std::unordered_map<const void*, size_t> first_unit_;
};

}  // namespace

ModelCensus count_parameters(torch::nn::Module& module) {
  Count count;
  count.walk(module, "", 0);
  return count.finish();
}

const UnitCensus& ModelCensus::largest_block() const {
  TESSERA_INVARIANT(!units.empty());
  const auto smaller = [](const UnitCensus& a, const UnitCensus& b) { return a.numel < b.numel; };
  if (units.size() < 3) return *std::max_element(units.begin(), units.end(), smaller);
  return *std::max_element(units.begin() + 1, units.end() - 1, smaller);
}

}  // namespace tessera::models
