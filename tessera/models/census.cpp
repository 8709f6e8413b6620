#include "tessera/models/census.h"

#include <torch/nn/module.h>

#include <algorithm>
#include <unordered_map>

#include "tessera/base/error.h"
#include "tessera/layout/range.h"
#include "tessera/models/model.h"
#include "tessera/nn/expert_axis.h"
#include "tessera/nn/layers.h"
#include "tessera/nn/tensor_axis.h"
#include "tessera/nn/unit_tree.h"

namespace tessera::models {
namespace {

class Count {
 public:
  Count(std::vector<std::string> experts, int64_t expert_ranks) : experts_(std::move(experts)) {
    census_.expert_ranks = expert_ranks;
  }

  void add(const nn::ModuleOfUnit& visited) {
    if (visited.begins != nullptr) census_.units.push_back({visited.path});
    int64_t own = 0;
    const auto* const layer = dynamic_cast<const nn::Adaptable*>(&visited.module);
    for (const auto& item : visited.module.named_parameters(/*recurse=*/false)) {
      const bool of_nf4 = layer != nullptr && layer->is_quantized();
      const bool is_nested = of_nf4 && item.key() == nn::kNestedScales;  // bytes of the weight, which is counted
      const bool is_quantized = is_nested || (of_nf4 && item.key() == "weight");
      const int64_t numel = is_nested ? 0 : is_quantized ? layer->weight_numel() : item.value().numel();
      own += numel;
      add(item.value(), numel, is_quantized, visited.unit, is_of_expert(visited.name_of(item.key())));
    }
    census_.largest_layer = std::max(census_.largest_layer, own);
  }

  ModelCensus finish() {
    for (UnitCensus& unit : census_.units) unit.expert_ranks = census_.expert_ranks;
    if (census_.units.front().numel == 0) {
      census_.units.erase(census_.units.begin());
    } else if (census_.units.size() > 1) {
      census_.embeddings = 1;
    }
    return std::move(census_);
  }

 private:
  bool is_of_expert(const std::string& name) const {
    return std::any_of(experts_.begin(), experts_.end(),
                       [&](const std::string& path) { return name.starts_with(path + "."); });
  }

  void add(const at::Tensor& parameter, int64_t numel, bool is_quantized, size_t unit, bool of_expert) {
    const auto [first, is_new] = first_unit_.try_emplace(parameter.unsafeGetTensorImpl(), unit);
    if (!is_new) {
      census_.head_shares_embeddings = census_.head_shares_embeddings || first->second != unit;
      return;
    }
    UnitCensus& counted = census_.units[unit];
    census_.params += numel;
    counted.numel += numel;
    if (of_expert) {
      census_.experts += numel;
      counted.experts += numel;
    }
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

  std::vector<std::string> experts_;
  ModelCensus census_{.units = {{"model"}}};  // the first unit: what belongs to no other
  std::unordered_map<const void*, size_t> first_unit_;
};

}  // namespace

namespace {

// Of so many elements a shard's, where those of experts are in fewer shards.
template <class Census>
int64_t shard_of(int64_t numel, const Census& of, int64_t ranks) {
  const int64_t experts = std::min(of.experts, numel);
  return layout::ceil_div(numel - experts, ranks) +
         layout::ceil_div(experts, std::max<int64_t>(1, ranks / of.expert_ranks));
}

}  // namespace

int64_t UnitCensus::bytes(int64_t each, int64_t ranks) const {
  return shard_of(numel - quantized, *this, ranks) * each + layout::ceil_div(quantized_bytes, ranks);
}

int64_t ModelCensus::bytes(int64_t each, int64_t ranks) const {
  return shard_of(params - quantized, *this, ranks) * each + layout::ceil_div(quantized_bytes, ranks);
}

int64_t UnitCensus::trained_shard(int64_t ranks) const { return shard_of(trained(), *this, ranks); }

int64_t ModelCensus::trained_shard(int64_t ranks) const { return shard_of(trained(), *this, ranks); }

ModelCensus count_parameters(torch::nn::Module& module, const std::vector<std::string>& experts, int expert_ranks) {
  Count count(experts, expert_ranks);
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

ModelCensus census_of(const Model& model, const std::string& class_name, const std::string& where,
                      const PartRanks& ranks) {
  const auto network = model.network_over(nn::TensorAxis::of_size(ranks.tensor));
  const std::vector<std::string> experts = network->share_experts(nn::ExpertAxis::of_size(ranks.expert));
  ModelCensus census = count_parameters(*network, experts, ranks.expert);
  census.source = fmt::format("{}, from {}", class_name, where);
  if (const auto whole = model.architecture()) census.architecture = whole->over(ranks.tensor);
  return census;
}

}  // namespace tessera::models
