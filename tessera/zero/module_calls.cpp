#include "tessera/zero/module_calls.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::zero {

struct ModuleCalls::Call {
  size_t module;
  size_t inputs_left = 0;     // inputs whose gradient backward has not computed yet
  bool holds_frozen = false;  // backward of this call has unsharded the module's frozen units
};

ModuleCalls::ModuleCalls(const Units& units, Residency& residency, std::vector<std::vector<size_t>> units_of_module,
                         bool shards_parameters)
    : units_(units),
      residency_(residency),
      units_of_module_(std::move(units_of_module)),
      sharded_of_module_(units_of_module_.size()),
      shards_parameters_(shards_parameters),
      held_by_backward_(units.size(), false) {
  for (size_t module = 0; module < units_of_module_.size(); ++module) {
    for (const size_t unit : units_of_module_[module]) {
      if (units_[unit]->shards_parameters()) sharded_of_module_[module].push_back(unit);
    }
  }
}

void ModuleCalls::before_forward(size_t module, const std::vector<at::Tensor>& inputs) {
  for (const size_t unit : units_of_module_[module]) units_[unit]->take_published();
  if (!shards_parameters_) return;
  const auto call = std::make_shared<Call>(Call{.module = module});
  residency_.hold_in_turn(sharded_of_module_[module]);
  calls_in_forward_.push_back(call);  // no sooner: an after_forward() follows only a before_forward() that returned
  if (!at::GradMode::is_enabled()) return;
  // Frozen parameters have no gradient whose arrival could tell that backward is done with them; the gradients of the
  // module's inputs do.
  for (const at::Tensor& input : inputs) {
    if (!input.defined() || !input.requires_grad()) continue;
    ++call->inputs_left;
    input.register_hook([self = weak_from_this(), call](const at::Tensor&) {
      if (--call->inputs_left > 0) return;
      if (const auto calls = self.lock()) calls->after_backward(*call);
    });
  }
}

void ModuleCalls::after_forward(size_t module, const std::vector<at::Tensor>& outputs) {
  if (!shards_parameters_) return;
  const std::shared_ptr<Call> call = std::move(calls_in_forward_.back());
  calls_in_forward_.pop_back();
  TESSERA_INVARIANT(call->module == module);
  for (const size_t unit : sharded_of_module_[module]) residency_.drop(unit);
  if (!at::GradMode::is_enabled()) {
    if (calls_in_forward_.empty()) residency_.end_pass();
    return;
  }
  for (const at::Tensor& output : outputs) {
    if (!output.defined() || !output.requires_grad()) continue;
    output.register_hook([self = weak_from_this(), call](const at::Tensor&) {
      if (const auto calls = self.lock()) calls->before_backward(call);
    });
  }
}

void ModuleCalls::before_backward(const std::shared_ptr<Call>& call) {
  std::vector<size_t> wanted;
  for (const size_t unit : sharded_of_module_[call->module]) {
    if (units_[unit]->trainable()) {
      if (!held_by_backward_[unit]) wanted.push_back(unit);
      held_by_backward_[unit] = true;
    } else if (!call->holds_frozen) {
      wanted.push_back(unit);
    }
  }
  if (!call->holds_frozen) calls_in_backward_.push_back(call);
  call->holds_frozen = true;
  residency_.hold_in_turn(wanted);
}

void ModuleCalls::after_backward(Call& call) {
  if (!call.holds_frozen) return;
  call.holds_frozen = false;
  for (const size_t unit : sharded_of_module_[call.module]) {
    if (!units_[unit]->trainable()) residency_.drop(unit);
  }
}

void ModuleCalls::gradients_complete(size_t unit) {
  if (!held_by_backward_[unit]) return;
  held_by_backward_[unit] = false;
  residency_.drop(unit);
}

void ModuleCalls::finish_backward() {
  for (size_t unit = 0; unit < units_.size(); ++unit) gradients_complete(unit);
  for (const auto& weak : calls_in_backward_) {
    if (const auto call = weak.lock()) after_backward(*call);
  }
  calls_in_backward_.clear();
  if (shards_parameters_) residency_.end_pass();
}

void ModuleCalls::abandon() {
  calls_in_forward_.clear();
  calls_in_backward_.clear();
  residency_.forget_holders();
  std::fill(held_by_backward_.begin(), held_by_backward_.end(), false);
  if (shards_parameters_) residency_.end_pass();
}

void ModuleCalls::also_uses(size_t module, size_t unit) {
  std::vector<size_t>& used = units_of_module_[module];
  if (std::find(used.begin(), used.end(), unit) != used.end()) return;
  used.push_back(unit);
  units_[unit]->take_published();
  if (!units_[unit]->shards_parameters()) return;
  sharded_of_module_[module].push_back(unit);
  for (const auto& call : calls_in_forward_) {
    if (call->module == module) residency_.hold({unit});
  }
}

std::optional<size_t> ModuleCalls::running_module() const {
  return calls_in_forward_.empty() ? std::nullopt : std::optional(calls_in_forward_.back()->module);
}

}  // namespace tessera::zero
