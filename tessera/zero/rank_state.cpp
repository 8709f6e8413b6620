#include "tessera/zero/rank_state.h"

#include <ATen/core/grad_mode.h>

namespace tessera::zero {
namespace {

// All that may be this rank's own, whether it is so now or not.
std::map<std::string, at::Tensor> possible_rank_state(const Unit& unit, const optim::Optimizer& optimizer) {
  std::map<std::string, at::Tensor> tensors{{"weight/" + unit.name(), unit.stored_weights().load()},
                                            {"worker_error/" + unit.name(), unit.worker_error()},
                                            {"server_error/" + unit.name(), unit.server_error()}};
  const auto names = optimizer.state_names();
  for (size_t k = 0; k < names.size(); ++k) tensors[names[k] + "/" + unit.name()] = unit.optimizer_state()[k].load();
  return tensors;
}

bool ranks_differ(const Unit& unit, const optim::Optimizer& optimizer) {
  for (size_t param = 0; param < unit.params().size(); ++param) {
    if (optimizer.ranks_differ(unit.numbers(param))) return true;
  }
  return false;
}

}  // namespace

std::map<std::string, at::Tensor> rank_state(const ShardedModel& model, const optim::Optimizer& optimizer) {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& unit : model.units()) {
    if (!unit->worker_error().defined()) continue;
    const bool all = ranks_differ(*unit, optimizer);
    for (const auto& [name, tensor] : possible_rank_state(*unit, optimizer)) {
      if (all || name.find("_error/") != std::string::npos) tensors[name] = tensor;
    }
  }
  return tensors;
}

void restore_rank_state(ShardedModel& model, const optim::Optimizer& optimizer,
                        const std::map<std::string, at::Tensor>& saved) {
  const at::NoGradGuard no_grad;
  for (const auto& unit : model.units()) {
    if (!unit->worker_error().defined()) continue;
    unit->worker_error().zero_();
    unit->server_error().zero_();
    for (const auto& [name, tensor] : possible_rank_state(*unit, optimizer)) {
      const auto found = saved.find(name);
      if (found != saved.end()) tensor.copy_(found->second);
    }
  }
}

}  // namespace tessera::zero
