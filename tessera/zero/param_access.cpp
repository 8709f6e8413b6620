#include "tessera/zero/param_access.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tessera/base/error.h"
#include "tessera/zero/param_pieces.h"

namespace tessera::zero {
namespace {

// What this rank owns of the parameter.
layout::Range owned_piece(const Unit& unit, size_t param) { return unit.layout().part_of(param, unit.owned()); }

// The same of `owned`, a tensor of the unit's owned part.
at::Tensor part_of(const at::Tensor& owned, const Unit& unit, size_t param) {
  const layout::Range piece = owned_piece(unit, param);
  return owned.narrow(0, unit.layout().params()[param].offset + piece.begin - unit.owned().begin, piece.numel());
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

// Changes this rank's part of the parameter, if it has one.
void write_part(ShardedModel& model, ShardedModel::ParamPlace place, StateOfParam which, const at::Tensor& value) {
  const Unit& unit = *model.units()[place.unit];
  if (owned_piece(unit, place.param).numel() == 0) return;
  model.world().settle();
  const at::Tensor owned = owned_tensor(model, place.unit, which);
  part_of(owned, unit, place.param).copy_(value);
  store_owned(model, place.unit, which, owned);
}

void publish(ShardedModel& model, size_t index) {
  Unit& unit = *model.units()[index];
  model.let_go_all();
  unit.refresh_compute();
  unit.start_publish();
  unit.finish_publish();
}

[[noreturn]] void refuse_unlike(const Unit& unit, size_t param) {
  const at::Tensor& given = unit.params()[param].tensor;
  const layout::FlatParam& place = unit.layout().params()[param];
  throw Error(ErrorKind::kUsage,
              {fmt::format("the parameter '{}' was given data of the dtype {} and the shape ({}) after initialize, "
                           "where it had {} and ({})",
                           place.name, c10::toString(given.scalar_type()), fmt::join(given.sizes(), ", "),
                           c10::toString(unit.compute().dtype()), fmt::join(place.shape, ", ")),
               "the model",
               "convert a model before initialize; the dtype of training is the configuration's ('bf16', 'fp16')"});
}

}  // namespace

at::Tensor local_value(ShardedModel& model, ShardedModel::ParamPlace place, StateOfParam which) {
  const at::NoGradGuard no_grad;
  const Unit& unit = *model.units()[place.unit];
  const at::ScalarType dtype = which.kind == StateOfParam::Kind::kGrad ? unit.grad().dtype()
                               : unit.is_bytes()                       ? at::kByte
                                                                       : at::kFloat;
  if (owned_piece(unit, place.param).numel() == 0) return at::empty({0}, at::TensorOptions(unit.device()).dtype(dtype));
  const at::Tensor part = part_of(owned_tensor(model, place.unit, which), unit, place.param);
  return part.to(unit.device(), dtype, /*non_blocking=*/false, /*copy=*/true);
}

at::Tensor full_value(ShardedModel& model, ShardedModel::ParamPlace place, StateOfParam which) {
  return assembled(model, place, local_value(model, place, which));
}

at::Tensor assembled(ShardedModel& model, ShardedModel::ParamPlace place, const at::Tensor& mine) {
  const Unit& unit = *model.units()[place.unit];
  const layout::FlatParam& param = unit.layout().params()[place.param];
  if (unit.owned().numel() == unit.layout().numel()) return mine.view(param.shape);  // nothing is sharded
  return assembled(unit.layout().parts_of(place.param), mine, *model.groups_of(place.unit).shard, param.name)
      .view(param.shape);
}

void set_full_value(ShardedModel& model, ShardedModel::ParamPlace place, StateOfParam which, const at::Tensor& value) {
  const layout::Range piece = owned_piece(*model.units()[place.unit], place.param);
  set_local_value(model, place, which, value.detach().reshape({-1}).narrow(0, piece.begin, piece.numel()));
}

void set_local_value(ShardedModel& model, ShardedModel::ParamPlace place, StateOfParam which, const at::Tensor& value) {
  const at::NoGradGuard no_grad;
  write_part(model, place, which, value.detach().reshape({-1}));
  if (which.kind == StateOfParam::Kind::kWeight) publish(model, place.unit);
}

void take_written(ShardedModel& model, ShardedModel::ParamPlace place) {
  const at::NoGradGuard no_grad;
  const Unit& unit = *model.units()[place.unit];
  const layout::Range piece = owned_piece(unit, place.param);
  const at::Tensor whole = unit.params()[place.param].tensor.detach().reshape({-1});
  const at::Tensor value = whole.narrow(0, piece.begin, piece.numel());
  const at::Tensor kept = local_value(model, place, {StateOfParam::Kind::kWeight});
  const at::Tensor is_kept = kept.to(value.scalar_type()).eq(value);
  write_part(model, place, {StateOfParam::Kind::kWeight}, at::where(is_kept, kept, value.to(kept.scalar_type())));
}

void take_replaced_data(ShardedModel& model, Unlike unlike) {
  for (size_t index = 0; index < model.units().size(); ++index) {
    Unit& unit = *model.units()[index];
    for (const size_t param : unit.replaced()) {
      if (unit.take_back(param)) {
        take_written(model, {index, param});
      } else if (unlike == Unlike::kRefuse && unit.trainable()) {
        refuse_unlike(unit, param);
      }
    }
  }
}

}  // namespace tessera::zero
