#include "tessera/zero/param_access.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "tessera/base/error.h"

namespace tessera::zero {
namespace {

std::optional<Segment> segment_of(const Layout& layout, Range range, size_t param) {
  for (const Segment& segment : layout.segments(range)) {
    if (segment.param == param) return segment;
  }
  return std::nullopt;
}

// The owned part of the unit's tensor: itself, or a copy where it rests on disk.
at::Tensor owned_tensor(ShardedModel& model, size_t index, StateOfParam which) {
  const Unit& unit = *model.units()[index];
  switch (which.kind) {
    case StateOfParam::Kind::kWeight:
      return unit.stored_weights().load();
    case StateOfParam::Kind::kGrad:
      TESSERA_INVARIANT(unit.trainable());
      return model.reducer().owned_grad(index);
    case StateOfParam::Kind::kOptimizerState:
      return unit.optimizer_state().at(which.state).load();
  }
  return {};
}

void store_owned(ShardedModel& model, size_t index, StateOfParam which, const at::Tensor& owned) {
  const Unit& unit = *model.units()[index];
  if (which.kind == StateOfParam::Kind::kWeight) unit.stored_weights().store(owned);
  if (which.kind == StateOfParam::Kind::kOptimizerState) unit.optimizer_state().at(which.state).store(owned);
  if (which.kind == StateOfParam::Kind::kGrad && unit.grad().swapped()) unit.grad().store(owned);
}

// Changes this rank's part; `value` is what of the parameter the range [first, first + numel) holds.
void write_part(ShardedModel& model, size_t index, const Segment& segment, StateOfParam which,
                const at::Tensor& value) {
  const at::Tensor owned = owned_tensor(model, index, which);
  owned.narrow(0, segment.offset - model.units()[index]->owned().begin, segment.numel).copy_(value);
  store_owned(model, index, which, owned);
}

void publish(ShardedModel& model, size_t index) {
  Unit& unit = *model.units()[index];
  model.let_go_all();
  unit.refresh_compute();
  comm::Collective publishing = unit.start_publish();
  if (publishing.in_flight()) publishing.finish();
}

}  // namespace

at::Tensor local_value(ShardedModel& model, ShardedModel::ParamPlace place, StateOfParam which) {
  const at::NoGradGuard no_grad;
  const Unit& unit = *model.units()[place.unit];
  const auto segment = segment_of(unit.layout(), unit.owned(), place.param);
  const bool keeps_dtype = which.kind == StateOfParam::Kind::kGrad;
  const at::ScalarType dtype = keeps_dtype ? unit.grad().dtype() : at::kFloat;
  if (!segment) return at::empty({0}, dtype);
  const at::Tensor owned = owned_tensor(model, place.unit, which);
  return owned.narrow(0, segment->offset - unit.owned().begin, segment->numel).to(dtype, false, /*copy=*/true);
}

at::Tensor full_value(ShardedModel& model, ShardedModel::ParamPlace place, StateOfParam which) {
  return assembled(model, place, local_value(model, place, which));
}

at::Tensor assembled(ShardedModel& model, ShardedModel::ParamPlace place, const at::Tensor& mine) {
  const at::NoGradGuard no_grad;
  const Unit& unit = *model.units()[place.unit];
  const Placement& param = unit.layout().params()[place.param];
  if (unit.owned().numel() == unit.layout().numel()) return mine.view(param.shape);
  const at::Tensor full = at::empty({param.numel}, mine.options());
  std::vector<comm::Collective> arriving;
  for (int rank = 0; rank < model.world().size(); ++rank) {
    const auto segment = segment_of(unit.layout(), unit.layout().slice(rank), place.param);
    if (!segment) continue;
    at::Tensor part = full.narrow(0, segment->first, segment->numel);
    if (rank == model.world().rank()) part.copy_(mine);
    arriving.push_back(model.world().start_broadcast(part, rank, param.name));
  }
  for (comm::Collective& each : arriving) each.finish();
  return full.view(param.shape);
}

void set_full_value(ShardedModel& model, ShardedModel::ParamPlace place, StateOfParam which, const at::Tensor& value) {
  const at::NoGradGuard no_grad;
  const Unit& unit = *model.units()[place.unit];
  const at::Tensor flat = value.detach().reshape({-1});
  if (const auto segment = segment_of(unit.layout(), unit.owned(), place.param)) {
    write_part(model, place.unit, *segment, which, flat.narrow(0, segment->first, segment->numel));
  }
  if (which.kind == StateOfParam::Kind::kWeight) publish(model, place.unit);
}

void set_local_value(ShardedModel& model, ShardedModel::ParamPlace place, StateOfParam which, const at::Tensor& value) {
  const at::NoGradGuard no_grad;
  const Unit& unit = *model.units()[place.unit];
  if (const auto segment = segment_of(unit.layout(), unit.owned(), place.param)) {
    write_part(model, place.unit, *segment, which, value.detach().reshape({-1}));
  }
  if (which.kind == StateOfParam::Kind::kWeight) publish(model, place.unit);
}

}  // namespace tessera::zero
