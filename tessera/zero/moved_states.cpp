#include "tessera/zero/moved_states.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "tessera/zero/unit.h"
#include "tessera/zero/unreadable.h"

namespace tessera::zero {

MovedStates::MovedStates(ShardedModel& model, const StatesToMove& states)
    : memory_(states.pinned ? model.policy().offload.pinned : nullptr) {
  const at::NoGradGuard no_grad;
  model.let_go_all();
  for (const auto& unit : model.units()) {
    if (states.parameters && unit->state() == UnitState::kGathered) {  // always so at stages 0 to 2
      for (const NamedParam& param : unit->params()) hide(param.tensor, param.name());
    }
    if (states.parameters) move(unit->compute());
    if (!unit->trainable()) continue;
    if (states.master && unit->has_master()) move(unit->master());
    if (states.gradients) move(unit->grad());
    if (!states.optimizer) continue;
    for (const StateTensor& state : unit->optimizer_state()) move(state);
    move(StateTensor(unit->worker_error()));
    move(StateTensor(unit->server_error()));
  }
  for (const at::Tensor& tensor : states.of_client) move(StateTensor(tensor));
}

void MovedStates::move(const StateTensor& state) {
  if (!state.defined() || state.swapped() || state.tensor().is_cpu()) return;
  const at::Tensor& tensor = state.tensor();
  const auto bytes = static_cast<int64_t>(tensor.storage().nbytes());
  if (bytes == 0) return;  // moved with another that it shares its storage with
  const int64_t numel = bytes / static_cast<int64_t>(tensor.element_size());
  const at::Tensor home = tensor.detach().as_strided({numel}, {1}, /*storage_offset=*/0);
  const at::Tensor on_host =
      memory_ ? memory_->empty(numel, home.scalar_type()) : at::empty({numel}, at::TensorOptions(home.scalar_type()));
  on_host.copy_(home);
  free_storage(home);
  moved_.push_back({home, on_host});
}

void MovedStates::hide(const at::Tensor& parameter, const std::string& name) {
  auto& [own, shown] = hidden_.emplace_back(parameter, parameter.detach());
  own.set_data(unreadable(shown.sizes(), shown.options(),
                          {"the weights of '" + name + "' are in host memory, where offload_states() has moved them",
                           "outside of the engine", "call the engine's reload_states() first"}));
}

void MovedStates::bring_back() {
  const at::NoGradGuard no_grad;
  for (const auto& [home, on_host] : moved_) {
    allocate_storage(home);
    home.copy_(on_host);
  }
  for (auto& [parameter, shown] : hidden_) parameter.set_data(shown);
  moved_.clear();
  hidden_.clear();
}

}  // namespace tessera::zero
