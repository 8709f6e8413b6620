#include "tessera/zero/sharded_step.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <cmath>

#include "tessera/base/error.h"
#include "tessera/optim/clip.h"

namespace tessera::zero {
namespace {

struct Gathered {
  double square_sum = 0;            // over all ranks, added in rank order
  std::vector<bool> used_anywhere;  // one entry a parameter, units in order
};

// One small all-gather: [sum of squares, used flag of each parameter] of every rank.
Gathered exchange(ShardedModel& model) {
  std::vector<double> mine{0};
  for (size_t unit = 0; unit < model.units().size(); ++unit) {
    if (!model.units()[unit]->trainable()) continue;
    mine[0] += optim::sum_of_squares(model.reducer().reduced_slice(unit));
    for (const bool used : model.reducer().used(unit)) mine.push_back(used ? 1 : 0);
  }
  comm::Communicator& world = model.world();
  const auto count = static_cast<int64_t>(mine.size());
  at::Tensor own = at::empty({count}, at::kDouble);
  std::copy(mine.begin(), mine.end(), own.mutable_data_ptr<double>());
  at::Tensor all = at::empty({count * world.size()}, at::kDouble);
  world.start_all_gather(all, own, "gradient norm").finish();

  Gathered result;
  result.used_anywhere.assign(count - 1, false);
  const double* const values = all.const_data_ptr<double>();
  for (int rank = 0; rank < world.size(); ++rank) {
    result.square_sum += values[rank * count];
    for (int64_t i = 1; i < count; ++i) {
      if (values[rank * count + i] != 0) result.used_anywhere[i - 1] = true;
    }
  }
  return result;
}

void update_unit(Unit& unit, const at::Tensor& owned_grad, const std::vector<bool>& used, size_t first_used,
                 const optim::Optimizer& optimizer, std::span<const optim::ParamGroup> groups, double divisor) {
  const at::Tensor grad = owned_grad.scalar_type() == at::kFloat ? owned_grad : owned_grad.to(at::kFloat);
  for (size_t param = 0; param < unit.params().size(); ++param) {
    if (used[first_used + param]) ++unit.steps()[param];
  }
  std::vector<optim::ParamSlice> slices;
  for (const Segment& segment : unit.layout().segments(unit.owned())) {
    if (!used[first_used + segment.param]) continue;
    const auto part = [&](const at::Tensor& owned) {
      return owned.narrow(0, segment.offset - unit.owned().begin, segment.padded_numel);
    };
    optim::ParamSlice slice{.weight = part(unit.master()), .grad = part(grad)};
    for (const at::Tensor& state : unit.optimizer_state()) slice.state.push_back(part(state));
    slice.step = unit.steps()[segment.param];
    slice.group = unit.params()[segment.param].group;
    slices.push_back(std::move(slice));
  }
  optimizer.update(slices, groups, divisor);
  unit.refresh_compute();
}

void finish_all(std::vector<comm::Collective>& collectives) {
  for (comm::Collective& collective : collectives) {
    if (collective.in_flight()) collective.finish();
  }
}

}  // namespace

StepResult sharded_step(ShardedModel& model, const optim::Optimizer& optimizer,
                        std::span<const optim::ParamGroup> groups, const StepInput& input) {
  const at::NoGradGuard no_grad;
  const Gathered gathered = exchange(model);
  const double norm = std::sqrt(gathered.square_sum) / input.loss_scale;
  if (!std::isfinite(norm)) {
    model.reducer().clear();
    return {.grad_norm = norm, .skipped = true};
  }
  const double divisor = input.loss_scale * optim::clip_divisor(norm, input.max_norm);

  std::vector<comm::Collective> publishing;
  size_t first_used = 0;
  for (size_t index = 0; index < model.units().size(); ++index) {
    Unit& unit = *model.units()[index];
    if (!unit.trainable()) continue;
    update_unit(unit, model.reducer().owned_grad(index), gathered.used_anywhere, first_used, optimizer, groups,
                divisor);
    first_used += unit.params().size();
    publishing.push_back(unit.start_publish());
  }
  finish_all(publishing);
  model.reducer().clear();
  return {.grad_norm = norm, .skipped = false};
}

void publish_parameters(ShardedModel& model) {
  const at::NoGradGuard no_grad;
  std::vector<comm::Collective> publishing;
  for (const auto& unit : model.units()) {
    unit->refresh_compute();
    publishing.push_back(unit->start_publish());
  }
  finish_all(publishing);
}

}  // namespace tessera::zero
