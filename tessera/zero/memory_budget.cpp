#include "tessera/zero/memory_budget.h"

#include <algorithm>

#include "tessera/zero/state_tiles.h"

namespace tessera::zero {

MemoryBudget memory_budget(const ShardedModel& model, bool cuts) {
  const auto pages = [](int64_t numel, at::ScalarType dtype) {
    return static_cast<int64_t>(storage::whole_pages(static_cast<size_t>(numel) * c10::elementSize(dtype)));
  };
  const auto grow = [](int64_t& largest, int64_t bytes) { largest = std::max(largest, bytes); };
  int64_t weight = 0, grad = 0, compute = 0, state = 0;  // of the largest tile
  int64_t fetched = 0, leaving = 0;
  for (const auto& unit : model.units()) {
    if (unit->compute().swapped()) grow(fetched, pages(unit->compute().numel(), unit->compute().dtype()));
    if (!unit->trainable()) continue;
    const int64_t tile =
        cuts ? std::min(largest_tile(model.policy().offload), unit->owned().numel()) : unit->owned().numel();
    const auto part = [&](const StateTensor& tensor) { return tensor.swapped() ? pages(tile, tensor.dtype()) : 0; };
    grow(weight, part(unit->master()));
    grow(grad, part(unit->grad()));
    if (unit->has_master()) grow(compute, part(unit->compute()));
    if (!unit->optimizer_state().empty()) grow(state, part(unit->optimizer_state().front()));
    if (unit->grad().swapped()) grow(leaving, pages(unit->grad().numel(), unit->grad().dtype()));
  }
  const Offload& offload = model.policy().offload;
  const auto states = static_cast<int64_t>(model.state_count());
  int64_t buffers = tile_slots(model) * (weight + grad + compute + states * state);
  buffers += GradientReducer::kMaxLeaving * leaving;
  if (offload.fetches) buffers += static_cast<int64_t>(offload.fetches->count() + 1) * fetched;
  return {.state = model.model_state_bytes(), .buffers = buffers};
}

}  // namespace tessera::zero
