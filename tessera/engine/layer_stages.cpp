#include "tessera/engine/layer_stages.h"

#include <fmt/format.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/layout/mesh_shape.h"
#include "tessera/pipeline/partition.h"

namespace tessera::engine {
namespace {

[[noreturn]] void refuse(const std::string& what, const std::string& fix) {
  throw Error(ErrorKind::kUsage, {what, "the layers of a pipeline", fix});
}

std::vector<int64_t> bounds_by_parameters(const torch::nn::Sequential& layers, int stages) {
  if (layers->size() < static_cast<size_t>(stages)) {
    refuse(fmt::format("{} are more than there are layers, {}", count_of(stages, "stage"), layers->size()),
           "use fewer ranks, or fewer stages on each");
  }
  std::vector<double> weights;
  for (const torch::nn::AnyModule& layer : *layers) {
    weights.push_back(0);
    for (const at::Tensor& parameter : layer.ptr()->parameters()) {
      weights.back() += static_cast<double>(parameter.numel());
    }
  }
  return pipeline::balanced_bounds(weights, stages);
}

void check_bounds(const std::vector<int64_t>& bounds, int stages, size_t layers) {
  const bool rise = std::adjacent_find(bounds.begin(), bounds.end(), std::greater_equal<>()) == bounds.end();
  if (rise && bounds.size() == static_cast<size_t>(stages) + 1 && bounds.front() == 0 &&
      bounds.back() == static_cast<int64_t>(layers)) {
    return;
  }
  refuse(fmt::format("the bounds are not those of {} with {} in all", count_of(stages, "stage"),
                     count_of(static_cast<int64_t>(layers), "layer")),
         fmt::format("give {} numbers that rise from 0 to {}", stages + 1, layers));
}

}  // namespace

LayerStages::LayerStages(const torch::nn::Sequential& layers, comm::Mesh& mesh, const pipeline::Schedule& schedule,
                         std::vector<int64_t> bounds)
    : bounds_(std::move(bounds)), rank_of_stage_(schedule.rank_of_stage), own_(std::make_shared<torch::nn::Module>()) {
  if (bounds_.empty()) bounds_ = bounds_by_parameters(layers, schedule.stages());
  check_bounds(bounds_, schedule.stages(), layers->size());
  require_own_parameters(layers);
  int64_t number = 0;
  for (const torch::nn::AnyModule& layer : *layers) {
    if (rank_of_layer(number) == mesh.coordinate(layout::kPipelineAxis)) {
      own_->register_module(std::to_string(number), layer.ptr());
      layers_.emplace(number, layer);
    }
    ++number;
  }
}

void LayerStages::require_own_parameters(const torch::nn::Sequential& layers) const {
  std::map<const void*, int64_t> first_with;
  int64_t number = 0;
  for (const torch::nn::AnyModule& layer : *layers) {
    for (const at::Tensor& parameter : layer.ptr()->parameters()) {
      const int64_t first = first_with.emplace(parameter.unsafeGetTensorImpl(), number).first->second;
      if (rank_of_layer(first) != rank_of_layer(number)) {
        refuse(fmt::format("layers {} and {} have a parameter in common, and are on different ranks", first, number),
               "give bounds that put them on one rank, or each a parameter of its own");
      }
    }
    ++number;
  }
}

int LayerStages::rank_of_layer(int64_t layer) const {
  const auto after = std::upper_bound(bounds_.begin(), bounds_.end(), layer);
  return rank_of_stage_[static_cast<size_t>(after - bounds_.begin()) - 1];
}

std::function<void(layout::ParamSpec& spec)> LayerStages::specify() const {
  return [stages = *this](layout::ParamSpec& spec) {
    const int64_t layer = std::stoll(spec.name.substr(0, spec.name.find('.')));
    spec.holders.push_back({layout::kPipelineAxis, {stages.rank_of_layer(layer)}});
  };
}

at::Tensor LayerStages::run(const StagePass& pass, const at::Tensor& input) const {
  const auto stage = static_cast<size_t>(pass.stage);
  at::Tensor x = pass.stage == 0 ? input : pass.entering.at(0);
  for (int64_t layer = bounds_[stage]; layer < bounds_[stage + 1]; ++layer) {
    torch::nn::AnyModule module = layers_.at(layer);  // the same module: its forward is not const
    x = module.forward<at::Tensor>(x);
  }
  return x;
}

}  // namespace tessera::engine
