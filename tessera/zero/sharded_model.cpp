#include "tessera/zero/sharded_model.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <unordered_map>
#include <unordered_set>

#include "tessera/base/error.h"
#include "tessera/zero/unreadable.h"

namespace tessera::zero {

struct ShardedModel::Call {
  size_t module;
  size_t inputs_left = 0;     // inputs whose gradient backward has not computed yet
  bool holds_frozen = false;  // backward of this call has gathered the module's frozen units
};

struct ShardedModel::GradientArrived : torch::autograd::PostAccumulateGradHook {
  GradientArrived(ShardedModel& model, size_t unit, size_t param) : model_(model), unit_(unit), param_(param) {}
  ~GradientArrived() override {
    if (!clearing_) return;
    const at::Tensor& parameter = model_.units_[unit_]->params()[param_].tensor;
    parameter.remove_hook(*clearing_);
    parameter.mutable_grad() = at::Tensor();
  }
  void operator()(const at::Tensor& parameter) override { model_.gradient_arrived(unit_, param_, parameter); }

  ShardedModel& model_;  // takes its hooks away before it goes
  size_t unit_;
  size_t param_;
  std::optional<unsigned> clearing_;  // the hook that clears what stands for the last gradient before the next arrives
};

namespace {

ErrorReport taken_gradient(const std::string& name) {
  return {"the gradient of '" + name + "' was taken by the engine, which reduces it and applies it in step()",
          "the parameter's grad()",
          "call engine->step(); clip with the key gradient_clipping, read get_global_grad_norm(); an optimizer of your "
          "own goes into InitializeOptions::optimizer"};
}

int64_t trainable_numel(const std::vector<ModuleParams>& modules) {
  std::unordered_set<const at::TensorImpl*> seen;
  int64_t numel = 0;
  for (const ModuleParams& module : modules) {
    for (const NamedParam& param : module.params) {
      const bool counts = param.trainable() && seen.insert(param.tensor.unsafeGetTensorImpl()).second;
      if (counts) numel += param.numel();
    }
  }
  return numel;
}

}  // namespace

ShardedModel::ShardedModel(const OptimizerNeeds& needs, const Policy& policy, std::shared_ptr<comm::Communicator> world)
    : policy_(policy),
      needs_(needs),
      world_(std::move(world)),
      gathers_(world_->with_channel("gather")),
      reductions_(world_->with_channel("reduce")) {}

std::shared_ptr<ShardedModel> ShardedModel::create(std::vector<ModuleParams> modules, const OptimizerNeeds& needs,
                                                   const Policy& policy, std::shared_ptr<comm::Communicator> world,
                                                   const FillParameter& fill) {
  std::shared_ptr<ShardedModel> model(new ShardedModel(needs, policy, std::move(world)));
  model->make_units(std::move(modules), fill);
  return model;
}

ShardedModel::~ShardedModel() {
  for (const auto& unit : units_) {
    for (const NamedParam& param : unit->params())
      torch::autograd::impl::set_post_acc_grad_hooks(param.tensor, nullptr);
  }
}

void ShardedModel::make_units(std::vector<ModuleParams> modules, const FillParameter& fill) {
  struct Owner {
    size_t unit;
    std::string name;
  };
  std::unordered_map<const at::TensorImpl*, Owner> owners;
  int64_t stays_in_memory = policy_.offload.parameters_in_memory;  // what is left of that allowance
  const double leaves = policy_.offload.optimizer_share * static_cast<double>(trainable_numel(modules));
  int64_t trainable_before = 0, may_persist = policy_.gathering.all_persistent_numel;
  for (const ModuleParams& module : modules) {
    std::vector<size_t> used;
    const auto uses = [&used](size_t unit) {
      if (std::find(used.begin(), used.end(), unit) == used.end()) used.push_back(unit);
    };
    for (const bool trainable : {true, false}) {
      std::vector<NamedParam> own;
      for (const NamedParam& param : module.params) {
        if (param.trainable() != trainable) continue;
        const auto [owner, is_new] = owners.try_emplace(param.tensor.unsafeGetTensorImpl(), units_.size(), param.name);
        if (is_new) {
          own.push_back(param);
        } else if (owner->second.unit < units_.size()) {
          uses(owner->second.unit);
        }
        if (owner->second.name != param.name) aliases_.push_back({param.name, owner->second.name});
      }
      if (own.empty()) continue;
      uses(units_.size());
      const std::string name = trainable ? module.name : module.name + " (frozen)";
      Policy policy = policy_;
      int64_t numel = 0;
      for (const NamedParam& param : own) numel += param.numel();
      stays_in_memory -= numel / world_->size();
      if (stays_in_memory >= 0) policy.offload.parameters = nullptr;
      if (static_cast<double>(trainable_before) >= leaves) {
        policy.offload.optimizer = nullptr;
        policy.offload.optimizer_on_host = false;
      }
      if (trainable) trainable_before += numel;
      for (size_t param = 0; param < own.size(); ++param) {
        places_[own[param].tensor.unsafeGetTensorImpl()] = {units_.size(), param};
      }
      units_.push_back(std::make_unique<Unit>(name, std::move(own), needs_, policy, *gathers_, fill));
      watch_gradients(units_.size() - 1);
      units_.back()->release();
      persistent_.push_back(numel <= policy_.gathering.persistent_numel && numel <= may_persist);
      if (persistent_.back()) may_persist -= numel;
    }
    units_of_module_.push_back(std::move(used));
  }
  holders_.assign(units_.size(), 0);
  held_by_backward_.assign(units_.size(), false);
  std::vector<Unit*> borrowed;
  for (const auto& unit : units_) borrowed.push_back(unit.get());
  reducer_ = std::make_unique<GradientReducer>(std::move(borrowed), policy_, *reductions_);
}

void ShardedModel::watch_gradients(size_t unit) {
  if (!units_[unit]->trainable()) return;
  const auto& params = units_[unit]->params();
  for (size_t index = 0; index < params.size(); ++index) {
    const at::Tensor& parameter = params[index].tensor;
    const auto accumulator = torch::autograd::impl::grad_accumulator(parameter);
    accumulators_.push_back(std::make_shared<std::decay_t<decltype(accumulator)>>(accumulator));
    auto arrived = std::make_unique<GradientArrived>(*this, unit, index);
    if (!policy_.placeholders_as_deepspeed) {
      const std::string& name = params[index].name;
      c10::TensorImpl* const impl = parameter.unsafeGetTensorImpl();
      const at::Tensor hidden =
          unreadable(params[index].full_shape(), parameter.options().requires_grad(false), taken_gradient(name));
      hidden_[impl] = hidden;
      // Runs before autograd adds the new gradient to what is there.
      arrived->clearing_ = parameter.register_hook([impl, hidden](const at::Tensor&) {
        if (impl->grad().is_same(hidden)) impl->mutable_grad() = at::Tensor();
      });
    }
    torch::autograd::impl::set_post_acc_grad_hooks(parameter, std::move(arrived));
  }
}

bool ShardedModel::is_taken(const at::Tensor& parameter) {
  if (!parameter.requires_grad()) return false;  // it may have nothing of autograd's, hooks neither
  return dynamic_cast<GradientArrived*>(torch::autograd::impl::post_acc_grad_hooks(parameter).get()) != nullptr;
}

// An optimizer that is not the engine's would pass over an undefined gradient without a word.
void ShardedModel::hide_gradient(size_t unit, size_t param) {
  const at::Tensor& parameter = units_[unit]->params()[param].tensor;
  const auto hidden = hidden_.find(parameter.unsafeGetTensorImpl());
  parameter.mutable_grad() = hidden == hidden_.end() ? at::Tensor() : hidden->second;
}

void ShardedModel::hold(const std::vector<size_t>& units) {
  int64_t comes = 0;
  for (const size_t unit : units) {
    if (holders_[unit]++ == 0 && units_[unit]->state() == UnitState::kSharded) comes += units_[unit]->layout().numel();
  }
  make_room(comes, /*distance=*/0);
  for (const size_t unit : units) units_[unit]->start_gather();
  for (const size_t unit : units) units_[unit]->finish_gather();
}

void ShardedModel::hold_in_turn(const std::vector<size_t>& units) {
  hold(units);
  for (const size_t unit : units) order_.gathered(unit);
  start_ahead();
}

// What comes next travels while the present units compute: from the disk, or between ranks. Every rank decides the same
// from the same record.
void ShardedModel::start_ahead() {
  int64_t left = policy_.gathering.ahead_numel, distance = 0;
  for (const size_t index : order_.upcoming()) {
    Unit& unit = *units_[index];
    const int64_t numel = unit.layout().numel();
    distance += numel;
    if (unit.state() == UnitState::kGathered) continue;
    left -= numel;
    if (left < 0) return;
    if (unit.state() == UnitState::kGathering) continue;
    if (unit.compute().swapped()) {
      unit.start_fetch();
    } else if (world_->size() > 1) {
      if (!make_room(numel, distance)) return;
      unit.start_gather();
    }
  }
}

void ShardedModel::end_pass() {
  order_.end_pass();
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    units_[unit]->forget_fetch();
    if (!persistent_[unit]) let_go(unit);
  }
}

// For each unit how many elements are used before it is used again.
std::vector<int64_t> ShardedModel::distances() const {
  constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  std::vector<int64_t> distances(units_.size(), kNever);
  int64_t passed = 0;
  for (const size_t unit : order_.upcoming()) {
    if (distances[unit] == kNever) distances[unit] = passed;
    passed += units_[unit]->layout().numel();
  }
  return distances;
}

// Lets go of units that nobody holds until `numel` more elements may be whole, those first that are used last, and none
// that is used within `distance`. False where that is not enough.
bool ShardedModel::make_room(int64_t numel, int64_t distance) {
  std::vector<size_t> idle;
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    if (units_[unit]->state() == UnitState::kSharded) continue;
    numel += units_[unit]->layout().numel();
    if (holders_[unit] == 0) idle.push_back(unit);
  }
  if (numel <= policy_.gathering.most_numel) return true;
  const std::vector<int64_t> until = distances();
  std::sort(idle.begin(), idle.end(), [&until](size_t a, size_t b) { return until[a] > until[b]; });
  for (const size_t unit : idle) {
    if (numel <= policy_.gathering.most_numel || until[unit] < distance) break;
    numel -= units_[unit]->layout().numel();
    let_go(unit);
  }
  return numel <= policy_.gathering.most_numel;
}

void ShardedModel::drop(size_t unit) {
  TESSERA_INVARIANT(holders_[unit] > 0);
  if (--holders_[unit] > 0) return;
  if (persistent_[unit] || distances()[unit] < policy_.gathering.reuse_numel) {
    make_room(0, /*distance=*/0);
  } else {
    let_go(unit);
  }
}

void ShardedModel::let_go(size_t unit) {
  if (holders_[unit] > 0 || units_[unit]->state() == UnitState::kSharded) return;
  units_[unit]->finish_gather();
  units_[unit]->release();
}

void ShardedModel::finish_publishing() {
  for (const auto& unit : units_) unit->finish_publish();
  world_->settle();
}

void ShardedModel::let_go_all() {
  finish_publishing();
  if (!policy_.shard_parameters) return;
  for (const size_t unit : all_units()) let_go(unit);
}

std::vector<size_t> ShardedModel::all_units() const {
  std::vector<size_t> all(units_.size());
  std::iota(all.begin(), all.end(), 0);
  return all;
}

void ShardedModel::hold_all() {
  finish_publishing();
  if (policy_.shard_parameters) hold(all_units());
}

void ShardedModel::drop_all() { drop_units(all_units()); }

void ShardedModel::hold_units(const std::vector<size_t>& units) {
  for (const size_t unit : units) units_[unit]->finish_publish();
  if (policy_.shard_parameters) hold(units);
}

void ShardedModel::drop_units(const std::vector<size_t>& units) {
  if (!policy_.shard_parameters) return;
  for (const size_t unit : units) {
    --holders_[unit];
    let_go(unit);
  }
}

std::optional<ShardedModel::ParamPlace> ShardedModel::place_of(const at::Tensor& parameter) const {
  const auto found = places_.find(parameter.unsafeGetTensorImpl());
  return found == places_.end() ? std::nullopt : std::optional(found->second);
}

void ShardedModel::also_uses(size_t module, size_t unit) {
  std::vector<size_t>& used = units_of_module_[module];
  if (std::find(used.begin(), used.end(), unit) != used.end()) return;
  used.push_back(unit);
  units_[unit]->take_published();
  if (!policy_.shard_parameters) return;
  for (const auto& call : calls_in_forward_) {
    if (call->module == module) hold({unit});
  }
}

std::optional<size_t> ShardedModel::running_module() const {
  return calls_in_forward_.empty() ? std::nullopt : std::optional(calls_in_forward_.back()->module);
}

void ShardedModel::before_forward(size_t module, const std::vector<at::Tensor>& inputs) {
  for (const size_t unit : units_of_module_[module]) units_[unit]->take_published();
  if (!policy_.shard_parameters) return;
  const auto call = std::make_shared<Call>(Call{.module = module});
  calls_in_forward_.push_back(call);
  hold_in_turn(units_of_module_[module]);
  if (!at::GradMode::is_enabled()) return;
  // Frozen parameters have no gradient whose arrival could tell that backward is done with them; the gradients of the
  // module's inputs do.
  for (const at::Tensor& input : inputs) {
    if (!input.defined() || !input.requires_grad()) continue;
    ++call->inputs_left;
    input.register_hook([self = weak_from_this(), call](const at::Tensor&) {
      if (--call->inputs_left > 0) return;
      if (const auto model = self.lock()) model->after_backward(*call);
    });
  }
}

void ShardedModel::after_forward(size_t module, const std::vector<at::Tensor>& outputs) {
  if (!policy_.shard_parameters) return;
  const std::shared_ptr<Call> call = std::move(calls_in_forward_.back());
  calls_in_forward_.pop_back();
  TESSERA_INVARIANT(call->module == module);
  for (const size_t unit : units_of_module_[module]) drop(unit);
  if (!at::GradMode::is_enabled()) {
    if (calls_in_forward_.empty()) end_pass();
    return;
  }
  for (const at::Tensor& output : outputs) {
    if (!output.defined() || !output.requires_grad()) continue;
    output.register_hook([self = weak_from_this(), call](const at::Tensor&) {
      if (const auto model = self.lock()) model->before_backward(call);
    });
  }
}

void ShardedModel::before_backward(const std::shared_ptr<Call>& call) {
  std::vector<size_t> wanted;
  for (const size_t unit : units_of_module_[call->module]) {
    if (units_[unit]->trainable()) {
      if (!held_by_backward_[unit]) wanted.push_back(unit);
      held_by_backward_[unit] = true;
    } else if (!call->holds_frozen) {
      wanted.push_back(unit);
    }
  }
  if (!call->holds_frozen) calls_in_backward_.push_back(call);
  call->holds_frozen = true;
  hold_in_turn(wanted);
}

void ShardedModel::after_backward(Call& call) {
  if (!call.holds_frozen) return;
  call.holds_frozen = false;
  for (const size_t unit : units_of_module_[call.module]) {
    if (!units_[unit]->trainable()) drop(unit);
  }
}

void ShardedModel::gradient_arrived(size_t unit, size_t param, const at::Tensor& parameter) {
  if (!in_backward_) {
    in_backward_ = true;
    if (unannounced_.begins) unannounced_.begins();
    torch::autograd::Engine::get_default_engine().queue_callback([self = weak_from_this()] {
      const auto model = self.lock();
      if (model && model->unannounced_.ends) model->unannounced_.ends();
    });
  }
  const bool complete = reducer_->add(unit, param, parameter.grad());
  hide_gradient(unit, param);
  if (complete && held_by_backward_[unit]) {
    held_by_backward_[unit] = false;
    drop(unit);
  }
}

void ShardedModel::finish_backward() {
  in_backward_ = false;
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    if (!held_by_backward_[unit]) continue;
    held_by_backward_[unit] = false;
    drop(unit);
  }
  for (const auto& weak : calls_in_backward_) {
    if (const auto call = weak.lock()) after_backward(*call);
  }
  calls_in_backward_.clear();
  if (policy_.shard_parameters) end_pass();
  reducer_->finish_backward();
}

void ShardedModel::abandon_pass() {
  in_backward_ = false;
  calls_in_forward_.clear();
  calls_in_backward_.clear();
  std::fill(holders_.begin(), holders_.end(), 0);
  std::fill(held_by_backward_.begin(), held_by_backward_.end(), false);
  if (policy_.shard_parameters) end_pass();
  reducer_->abandon();
}

Unit::Bytes ShardedModel::model_state_bytes() const {
  Unit::Bytes bytes;
  for (const auto& unit : units_) {
    const Unit::Bytes own = unit->model_state_bytes();
    bytes.memory += own.memory;
    bytes.disk += own.disk;
  }
  return bytes;
}

int64_t ShardedModel::param_count() const {
  int64_t count = 0;
  for (const auto& unit : units_) count += unit->layout().param_numel();
  return count;
}

}  // namespace tessera::zero
