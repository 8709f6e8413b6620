#include "tessera/models/census.h"

#include <c10/util/accumulate.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <unordered_map>

#include "tessera/base/error.h"
#include "tessera/layout/range.h"
#include "tessera/models/model.h"
#include "tessera/nn/layers.h"
#include "tessera/nn/tensor_axis.h"
#include "tessera/nn/unit_tree.h"

namespace tessera::models {
namespace {

class Count {
 public:
  void add(const nn::ModuleOfUnit& visited) {
    if (visited.begins != nullptr) census_.units.push_back({visited.path});
    int64_t own = 0;
    const auto* const layer = dynamic_cast<const nn::Adaptable*>(&visited.module);
    for (const auto& item : visited.module.named_parameters(/*recurse=*/false)) {
      const bool is_quantized = layer != nullptr && layer->is_quantized() && item.key() == "weight";
      const int64_t numel = is_quantized ? c10::multiply_integers(layer->weight_shape()) : item.value().numel();
      own += numel;
      add(item.value(), numel, is_quantized, visited.unit);
    }
    census_.largest_layer = std::max(census_.largest_layer, own);
  }

  ModelCensus finish() {
    if (census_.units.front().numel == 0) {
      census_.units.erase(census_.units.begin());
    } else if (census_.units.size() > 1) {
      census_.embeddings = 1;
    }
    return std::move(census_);
  }

 private:
  void add(const at::Tensor& parameter, int64_t numel, bool is_quantized, size_t unit) {
    const auto [first, is_new] = first_unit_.try_emplace(parameter.unsafeGetTensorImpl(), unit);
    if (!is_new) {
      census_.head_shares_embeddings = census_.head_shares_embeddings || first->second != unit;
      return;
    }
    UnitCensus& counted = census_.units[unit];
    census_.params += numel;
    counted.numel += numel;
    if (!parameter.requires_grad()) {
      census_.frozen += numel;
      counted.frozen += numel;
    }
    counted.largest_tensor = std::max(counted.largest_tensor, numel);
    if (!is_quantized) return;
    census_.quantized += numel;
    census_.quantized_bytes += parameter.numel();
    counted.quantized += numel;
    counted.quantized_bytes += parameter.numel();
    counted.largest_quantized = std::max(counted.largest_quantized, numel);
  }

  ModelCensus census_{.units = {{"model"}}};  // the first unit: what belongs to no other
  std::unordered_map<const void*, size_t> first_unit_;
};

}  // namespace

int64_t UnitCensus::bytes(int64_t each, int64_t ranks) const {
  return layout::ceil_div(numel - quantized, ranks) * each + layout::ceil_div(quantized_bytes, ranks);
}

int64_t ModelCensus::bytes(int64_t each, int64_t ranks) const {
  return layout::ceil_div(params - quantized, ranks) * each + layout::ceil_div(quantized_bytes, ranks);
}

ModelCensus count_parameters(torch::nn::Module& module) {
  Count count;
  nn::visit_units(module, [&count](const nn::ModuleOfUnit& visited) { count.add(visited); });
  return count.finish();
}

const UnitCensus& ModelCensus::largest_block() const {
  TESSERA_INVARIANT(!units.empty());
  const auto smaller = [](const UnitCensus& a, const UnitCensus& b) { return a.numel < b.numel; };
  if (units.size() < embeddings + 3) return *std::max_element(units.begin(), units.end(), smaller);
  return *std::max_element(units.begin() + static_cast<std::ptrdiff_t>(embeddings) + 1, units.end() - 1, smaller);
}

Architecture Architecture::over(int64_t tensor_ranks) const {
  Architecture part = *this;
  for (int64_t* const size : {&part.heads, &part.kv_heads, &part.ffn, &part.vocab, &part.head_weights}) {
    *size = layout::ceil_div(*size, tensor_ranks);
  }
  return part;
}

ModelCensus census_of(const Model& model, const std::string& class_name, const std::string& where, int tensor_ranks) {
  ModelCensus census = count_parameters(*model.network_over(nn::TensorAxis::of_size(tensor_ranks)));
  census.source = fmt::format("{}, from {}", class_name, where);
  if (const auto whole = model.architecture()) census.architecture = whole->over(tensor_ranks);
  return census;
}

}  // namespace tessera::models
