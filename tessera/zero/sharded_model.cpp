#include "tessera/zero/sharded_model.h"

#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <numeric>

#include "tessera/zero/param_pieces.h"

namespace tessera::zero {

ShardedModel::ShardedModel(const OptimizerNeeds& needs, const Policy& policy, std::shared_ptr<comm::Mesh> mesh)
    : policy_(policy),
      needs_(needs),
      mesh_(std::move(mesh)),
      groups_(mesh_, policy.shard_optimizer),
      gathers_(mesh_, policy.shard_optimizer, "gather", policy.traffic.inner_ranks),
      reductions_(mesh_, policy.shard_optimizer, "reduce", policy.traffic.inner_ranks),
      hooks_(
          [this](size_t unit, size_t param, const at::Tensor& parameter) { gradient_arrived(unit, param, parameter); },
          policy.placeholders_as_deepspeed,
          {.place =
               [this](size_t unit, size_t param) {
                 note_backward();
                 return reducer_->place(unit, param);
               },
           .taken =
               [this](size_t unit, size_t param) {
                 if (reducer_->taken(unit, param)) calls_->gradients_complete(unit);
               }}) {}

std::shared_ptr<ShardedModel> ShardedModel::create(std::vector<ModuleParams> modules, const OptimizerNeeds& needs,
                                                   const Policy& policy, std::shared_ptr<comm::Mesh> mesh,
                                                   const FillParameter& fill) {
  std::shared_ptr<ShardedModel> model(new ShardedModel(needs, policy, std::move(mesh)));
  model->build(std::move(modules), fill);
  return model;
}

void ShardedModel::build(std::vector<ModuleParams> modules, const FillParameter& fill) {
  const auto watch = [this](size_t index) {
    const Unit& unit = *built_.units[index];
    if (!unit.trainable()) return;
    for (size_t param = 0; param < unit.params().size(); ++param) {
      hooks_.watch(unit.params()[param].tensor, unit.params()[param].name(), index, param);
    }
  };
  build_units({.modules = std::move(modules),
               .needs = needs_,
               .policy = policy_,
               .mesh = *mesh_,
               .groups = gathers_,
               .fill = fill},
              built_, watch);
  residency_.emplace(built_.units, built_.persistent, policy_.residency, groups().shard->size());
  calls_ = std::make_shared<ModuleCalls>(built_.units, *residency_, built_.of_module, policy_.shard_parameters);
  std::vector<Unit*> borrowed;
  std::vector<DataGroups> groups;
  for (const auto& unit : built_.units) {
    groups.push_back(reductions_.of(built_.in_parts[borrowed.size()]));
    borrowed.push_back(unit.get());
  }
  reducer_ = std::make_unique<GradientReducer>(std::move(borrowed), policy_, std::move(groups));
}

void ShardedModel::note_backward() {
  if (in_backward_) return;
  in_backward_ = true;
  if (unannounced_.begins) unannounced_.begins();
  torch::autograd::Engine::get_default_engine().queue_callback([self = weak_from_this()] {
    const auto model = self.lock();
    if (model && model->unannounced_.ends) model->unannounced_.ends();
  });
}

void ShardedModel::gradient_arrived(size_t unit, size_t param, const at::Tensor& parameter) {
  note_backward();
  const bool complete = reducer_->add(unit, param, parameter.grad());
  hooks_.hide(parameter);
  if (complete) calls_->gradients_complete(unit);
}

void ShardedModel::finish_backward() {
  in_backward_ = false;
  calls_->finish_backward();
  reducer_->finish_backward();
}

void ShardedModel::abandon_pass() {
  in_backward_ = false;
  calls_->abandon();
  reducer_->abandon();
}

comm::Group& ShardedModel::holders_group(const layout::Holders& holders) {
  std::shared_ptr<comm::Group>& group = holders_groups_[{holders.axis, holders.coordinates}];
  if (!group)
    group = mesh_->group({holders.axis})->subgroup(holders.coordinates, holders.axis + " of shared parameters");
  return *group;
}

std::vector<size_t> ShardedModel::all_units() const {
  std::vector<size_t> all(built_.units.size());
  std::iota(all.begin(), all.end(), 0);
  return all;
}

void ShardedModel::hold_all() {
  finish_publishing();
  if (policy_.shard_parameters) residency_->hold(all_units(), Unit::Values::kStored);
}

void ShardedModel::hold_units(const std::vector<size_t>& units) {
  for (const size_t unit : units) built_.units[unit]->finish_publish();
  if (policy_.shard_parameters) residency_->hold(units, Unit::Values::kStored);
}

void ShardedModel::drop_units(const std::vector<size_t>& units) {
  if (policy_.shard_parameters) residency_->drop_and_evict(units);
}

void ShardedModel::take_over(size_t unit, int root) {
  const layout::MeshShape& shape = mesh_->shape();
  require_writer(root, shape.ranks());
  std::vector<std::string> axes = shape.data_axes();
  for (const std::string& axis : built_.in_parts.at(unit)) std::erase(axes, axis);
  const std::vector<int> sharers = shape.members(root, axes);
  built_.units[unit]->take_over(static_cast<int>(std::find(sharers.begin(), sharers.end(), root) - sharers.begin()));
}

void ShardedModel::finish_publishing() {
  for (const auto& unit : built_.units) unit->finish_publish();
  groups().all->settle();
}

void ShardedModel::finish_persistent() {
  for (const auto& unit : built_.units) unit->finish_persistent();
}

void ShardedModel::let_go_all() {
  finish_publishing();
  if (policy_.shard_parameters) residency_->evict_all();
}

std::optional<ParamPlace> ShardedModel::place_of(const at::Tensor& parameter) const {
  const auto found = built_.places.find(parameter.unsafeGetTensorImpl());
  return found == built_.places.end() ? std::nullopt : std::optional(found->second);
}

Unit::Bytes ShardedModel::model_state_bytes() const {
  Unit::Bytes bytes;
  for (const auto& unit : built_.units) {
    const Unit::Bytes own = unit->model_state_bytes();
    bytes.memory += own.memory;
    bytes.disk += own.disk;
  }
  return bytes;
}

int64_t ShardedModel::param_count() const {
  int64_t count = 0;
  for (const auto& unit : built_.units) count += unit->layout().param_numel();
  return count;
}

}  // namespace tessera::zero
