#include "tessera/zero/moved_states.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "tessera/zero/unit.h"
#include "tessera/zero/unreadable.h"

namespace tessera::zero {

MovedStates::MovedStates(ShardedModel& model, const StatesToMove& states) {
  const at::NoGradGuard no_grad;
  model.let_go_all();
  for (const auto& unit : model.units()) {
    if (states.parameters && unit->state() == UnitState::kGathered) {  // always so at stages 0 to 2
      for (const NamedParam& param : unit->params()) hide(param.tensor, param.name());
    }
    if (states.parameters) move(unit->compute(), states.pinned);
    if (!unit->trainable()) continue;
    if (states.master && unit->has_master()) move(unit->master(), states.pinned);
    if (states.gradients) move(unit->grad(), states.pinned);
    if (!states.optimizer) continue;
    for (const StateTensor& state : unit->optimizer_state()) move(state, states.pinned);
    move(StateTensor(unit->worker_error()), states.pinned);
    move(StateTensor(unit->server_error()), states.pinned);
  }
  for (const at::Tensor& tensor : states.of_client) move(StateTensor(tensor), states.pinned);
}

void MovedStates::move(const StateTensor& state, bool pinned) {
  if (!state.defined() || state.swapped() || state.tensor().is_cpu()) return;
  const at::Tensor& tensor = state.tensor();
  const auto bytes = static_cast<int64_t>(tensor.storage().nbytes());
  if (bytes == 0) return;  // moved with another that it shares its storage with
  const at::Tensor home =
      tensor.detach().as_strided({bytes / static_cast<int64_t>(tensor.element_size())}, {1}, /*storage_offset=*/0);
  const at::Tensor on_host =
      at::empty(home.sizes(), home.options().device(at::kCPU).pinned_memory(pinned && home.is_cuda())).copy_(home);
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
