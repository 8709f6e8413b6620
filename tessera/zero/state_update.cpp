#include "tessera/zero/state_update.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <sstream>

#include "tessera/base/trace.h"
#include "tessera/comm/current_stream.h"
#include "tessera/optim/clip.h"
#include "tessera/zero/shared_gradients.h"
#include "tessera/zero/unit_peers.h"

namespace tessera::zero {
namespace {

struct Gathered {
  double norm_square = 0;  // of the mean gradient; added in rank order
  std::vector<int> users;  // ranks that had a gradient of each trainable parameter, units in order
};

// Every rank's numbers.
std::vector<std::vector<double>> gather(comm::Group& group, const std::vector<double>& mine, const std::string& label) {
  const auto count = static_cast<int64_t>(mine.size());
  at::Tensor own = at::empty({count}, at::kDouble);
  std::copy(mine.begin(), mine.end(), own.mutable_data_ptr<double>());
  at::Tensor all = at::empty({count * group.size()}, at::kDouble);
  group.start_all_gather(all, own, label).finish();
  std::vector<std::vector<double>> gathered;
  const double* const values = all.const_data_ptr<double>();
  for (int rank = 0; rank < group.size(); ++rank) {
    gathered.emplace_back(values + rank * count, values + (rank + 1) * count);
  }
  return gathered;
}

// Where the ranks of a part of a group are in it.
std::vector<size_t> places_in(const comm::Group& group, const comm::Group& part) {
  const std::vector<int>& all = group.members();
  std::vector<size_t> places;
  for (const int rank : part.members()) {
    places.push_back(static_cast<size_t>(std::find(all.begin(), all.end(), rank) - all.begin()));
  }
  return places;
}

// One small all-gather: [sum of squares, used flag of each parameter] of the ranks that share the units; where others
// hold other parts of the model, their sums of squares go round once more.
Gathered exchange(ShardedModel& model) {
  std::vector<double> mine{0};
  optim::SumOfSquares squares;
  for (size_t unit = 0; unit < model.units().size(); ++unit) {
    if (!model.units()[unit]->trainable()) continue;
    model.reducer().keeps_own() ? squares.add(model.reducer().owned_grad(unit))
                                : squares.add(model.reducer().sum_of_squares(unit));
    for (const bool used : model.reducer().used(unit)) mine.push_back(used ? 1 : 0);
  }
  mine[0] = squares.value();
  comm::Group& sharers = *model.groups().all;
  if (!model.policy().device.value_or(at::kCPU).is_cpu()) sharers.settle();  // the device has run all collectives
  const std::vector<std::vector<double>> of_ranks = gather(sharers, mine, "gradient norm");
  Gathered result;
  for (const std::vector<double>& of_rank : of_ranks) result.norm_square += of_rank[0];
  for (const auto& unit : model.units()) {
    if (!unit->trainable()) continue;
    const std::vector<size_t> same = places_in(sharers, *unit->groups().all);
    for (size_t param = 0; param < unit->params().size(); ++param) {
      const size_t flag = 1 + result.users.size();
      result.users.push_back(static_cast<int>(
          std::count_if(same.begin(), same.end(), [&](size_t rank) { return of_ranks[rank][flag] != 0; })));
    }
  }
  if (model.reducer().keeps_own()) result.norm_square /= sharers.size();
  comm::Group& parts = *model.groups().parts;
  if (parts.size() == 1) return result;
  const std::vector<double> part{result.norm_square};
  result.norm_square = 0;
  for (const std::vector<double>& of_rank : gather(parts, part, "gradient norm")) result.norm_square += of_rank[0];
  return result;
}

void check_all_used(const ShardedModel& model, std::span<const int> users) {
  std::vector<std::string> unused;
  size_t index = 0;
  for (const auto& unit : model.units()) {
    if (!unit->trainable()) continue;
    const int ranks = unit->groups().all->size();
    for (const NamedParam& param : unit->params()) {
      const int without = ranks - users[index++];
      if (without == 0) continue;
      unused.push_back(fmt::format("'{}'", param.name()));
      if (without < ranks) unused.back() += fmt::format(" (on {} of {} ranks)", without, ranks);
    }
  }
  if (unused.empty()) return;
  throw UnusedParameters(
      ErrorKind::kUsage,
      {fmt::format("no gradient arrived for {}, and zero_optimization.ignore_unused_parameters is false",
                   fmt::join(unused, ", ")),
       "step",
       "make the loss depend on every trainable parameter, freeze those that it need not depend on, or set "
       "ignore_unused_parameters to true"});
}

// Where a range of the unit's owned part lies, cut into parts that lie in one rank's shard each, also at stage 0, so
// that what an optimizer adds up over parts is added in the same order at every stage.
std::vector<layout::Segment> owned_segments(const Unit& unit, layout::Range range) {
  const layout::Range wanted{unit.owned().begin + range.begin, unit.owned().begin + range.end};
  std::vector<layout::Segment> all;
  for (int64_t rank = 0; rank < unit.layout().shards(); ++rank) {
    const layout::Range shard = unit.layout().shard(rank);
    const layout::Range part{std::max(shard.begin, wanted.begin), std::min(shard.end, wanted.end)};
    if (part.begin >= part.end) continue;
    for (const layout::Segment& segment : unit.layout().segments(part)) all.push_back(segment);
  }
  return all;
}

std::vector<layout::Segment> owned_segments(const Unit& unit) {
  return owned_segments(unit, {0, unit.owned().numel()});
}

// A tile's tensors as the optimizer takes them: the tensors themselves, or copies that are rounded or moved back once
// they are updated. All of them are where the optimizer's states rest, since these are the most bytes. An optimizer
// that takes any dtype does so on the CPU; elsewhere it gets fp32, as others do. What goes to a device from here goes
// while the next tile is updated; the current stream waits for it.
class OptimizerTensors {
 public:
  // `outgoing`: null where nothing goes to a device.
  OptimizerTensors(const StateTile& tile, bool any_dtype, storage::StagingBuffers* outgoing, const std::string& name)
      : tile_(tile),
        device_((tile.state.empty() ? tile.weight : tile.state.front()).device()),
        any_dtype_(any_dtype && device_.is_cpu()),
        outgoing_(outgoing),
        name_(name) {
    weight = prepared(tile.weight);
    grad = prepared(tile.grad);
    for (const at::Tensor& each : tile.state) state.push_back(prepared(each));
    if (!any_dtype_ || !tile.compute.defined()) return;
    leaving_ = leaves(tile.compute) ? &outgoing_->next(tile.compute.numel(), tile.compute.scalar_type()) : nullptr;
    compute = leaving_ != nullptr ? leaving_->values : tile.compute;
  }

  void put_back() {
    put_back(tile_.weight, weight);
    for (size_t k = 0; k < state.size(); ++k) put_back(tile_.state[k], state[k]);
    if (tile_.compute.defined()) put_back(tile_.compute, any_dtype_ ? compute : tile_.weight);
  }

  at::Tensor weight, grad, compute;
  std::vector<at::Tensor> state;

 private:
  bool leaves(const at::Tensor& kept) const { return outgoing_ != nullptr && device_.is_cpu() && !kept.is_cpu(); }

  at::Tensor prepared(const at::Tensor& tensor) const {
    const at::ScalarType dtype = any_dtype_ ? tensor.scalar_type() : at::kFloat;
    if (!leaves(tensor)) return tensor.to(device_, dtype);
    const at::Tensor arrived = outgoing_->link().memory().empty(tensor.numel(), tensor.scalar_type());
    outgoing_->link().start_to_host(arrived, tensor, name_).finish();
    return arrived.to(dtype);
  }

  void put_back(const at::Tensor& kept, const at::Tensor& updated) {
    if (kept.is_same(updated)) return;
    if (!leaves(kept)) {
      kept.copy_(updated);
      return;
    }
    if (leaving_ == nullptr || !leaving_->values.is_same(updated)) {
      leaving_ = &outgoing_->next(kept.numel(), kept.scalar_type());
      leaving_->values.copy_(updated);
    }
    leaving_->copy = outgoing_->link().start_to_device(kept, leaving_->values, name_);
    storage::HostLink::Copy(leaving_->copy).wait_on(comm::current_stream(kept.device()));
  }

  const StateTile& tile_;
  at::Device device_;
  bool any_dtype_;
  storage::StagingBuffers* outgoing_;
  storage::StagingBuffers::Buffer* leaving_ = nullptr;  // what of it this tile has
  const std::string& name_;
};

// `used` counts from the unit's first parameter.
void update_tile(const StateTile& tile, ShardedModel& model, std::span<const char> used,
                 const optim::Optimizer& optimizer, const optim::UpdateInput& common,
                 storage::StagingBuffers* outgoing) {
  Unit& unit = *model.units()[tile.unit];
  OptimizerTensors tensors(tile, optimizer.takes_any_dtype(), outgoing, unit.name());
  std::vector<optim::WholeParam> params;
  for (size_t param = 0; param < unit.params().size(); ++param) {
    if (tile.first_of_unit && used[param]) ++unit.steps()[param];
    const layout::FlatParam& place = unit.layout().params()[param];
    params.push_back({place.name, place.shape, place.numel, unit.params()[param].group});
  }
  std::vector<optim::ParamShard> shards;
  for (const layout::Segment& segment : owned_segments(unit, tile.range)) {
    if (!used[segment.param]) continue;
    const auto part = [&](const at::Tensor& owned) {
      return owned.narrow(0, segment.offset - unit.owned().begin - tile.range.begin, segment.padded_numel);
    };
    optim::ParamShard shard{.weight = part(tensors.weight), .grad = part(tensors.grad)};
    for (const at::Tensor& state : tensors.state) shard.state.push_back(part(state));
    if (tensors.compute.defined()) shard.compute = part(tensors.compute);
    shard.step = unit.steps()[segment.param];
    shard.group = unit.params()[segment.param].group;
    shard.numbers = unit.numbers(segment.param);
    shard.param = segment.param;
    shard.first = segment.first;
    shards.push_back(std::move(shard));
  }
  UnitPeers peers(unit, *model.groups_of(tile.unit).shard);
  optim::UpdateInput input = common;
  input.params = params;
  input.peers = &peers;
  optimizer.update(shards, input);
  tensors.put_back();
}

// Names of the parameters whose mean gradient has an infinity or NaN on any rank, in the model's order.
std::vector<std::string> nonfinite_parameters(ShardedModel& model) {
  std::string mine;
  for (size_t index = 0; index < model.units().size(); ++index) {
    const Unit& unit = *model.units()[index];
    if (!unit.trainable()) continue;
    const at::Tensor grad = model.reducer().owned_grad(index);
    for (const layout::Segment& segment : owned_segments(unit)) {
      const at::Tensor part = grad.narrow(0, segment.offset - unit.owned().begin, segment.numel);
      if (!std::isfinite(optim::sum_of_squares(part))) mine += unit.params()[segment.param].name() + "\n";
    }
  }
  std::set<std::string> found;
  for (const std::string& text : model.world().exchange_texts(mine, "parameters that are not finite")) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) found.insert(line);
  }
  std::vector<std::string> names;
  for (const auto& unit : model.units()) {
    for (const NamedParam& param : unit->params()) {
      if (found.contains(param.name())) names.push_back(param.name());
    }
  }
  return names;
}

// Master weights in fp32 and in memory: see Optimizer::takes_whole_model. One shard for each parameter, or for this
// rank's part of it.
void update_whole_model(ShardedModel& model, const optim::Optimizer& optimizer, const optim::UpdateInput& common,
                        std::span<const char> used, const std::function<void(Unit&)>& updated) {
  std::vector<optim::WholeParam> params;
  std::vector<optim::ParamShard> shards;
  for (size_t index = 0; index < model.units().size(); ++index) {
    Unit& unit = *model.units()[index];
    if (!unit.trainable()) continue;
    const size_t first_param = params.size();
    for (size_t param = 0; param < unit.params().size(); ++param) {
      const layout::FlatParam& place = unit.layout().params()[param];
      params.push_back({place.name, place.shape, place.numel, unit.params()[param].group});
      if (used[first_param + param]) ++unit.steps()[param];
    }
    const at::Tensor grad = model.reducer().owned_grad(index).to(unit.master().tensor().device(), at::kFloat);
    for (const layout::Segment& segment : unit.layout().segments(unit.owned())) {
      const size_t param = first_param + segment.param;
      if (!used[param]) continue;
      const auto part = [&](const at::Tensor& owned) {
        return owned.narrow(0, segment.offset - unit.owned().begin, segment.padded_numel);
      };
      shards.push_back({.weight = part(unit.master().tensor()),
                        .grad = part(grad),
                        .state = {},
                        .step = unit.steps()[segment.param],
                        .group = params[param].group,
                        .param = param,
                        .first = segment.first});
    }
  }
  optim::UpdateInput input = common;
  input.params = params;
  optimizer.update(shards, input);
  for (const auto& unit : model.units()) {
    if (!unit->trainable()) continue;
    unit->refresh_compute();
    updated(*unit);
  }
}

}  // namespace

StepPlan plan_step(ShardedModel& model, const StepInput& input) {
  const at::NoGradGuard no_grad;
  sum_over_holders(model);
  const Gathered gathered = exchange(model);
  if (model.policy().refuses_unused) check_all_used(model, gathered.users);
  const double norm = std::sqrt(gathered.norm_square) / input.loss_scale;
  StepPlan plan{.result = {.grad_norm = norm},
                .step = input.step,
                .grad_divisor = input.loss_scale * optim::clip_divisor(norm, input.max_norm),
                .used_anywhere = {}};
  for (const int users : gathered.users) plan.used_anywhere.push_back(users > 0 ? 1 : 0);
  if (std::isfinite(norm) || !input.skip_nonfinite) return plan;
  plan.result.skipped = true;
  if (input.name_nonfinite) plan.result.nonfinite = nonfinite_parameters(model);
  return plan;
}

void update_state(ShardedModel& model, StateTiles& tiles, const optim::Optimizer& optimizer,
                  std::span<const optim::ParamGroup> groups, const StepPlan& plan,
                  const std::function<void(Unit&)>& updated) {
  const at::NoGradGuard no_grad;
  const optim::UpdateInput common{.groups = groups, .step = plan.step, .grad_divisor = plan.grad_divisor};
  if (optimizer.takes_whole_model()) {
    const TraceSpan span(TraceLane::kOptimizer, "update of the whole model");
    return update_whole_model(model, optimizer, common, plan.used_anywhere, updated);
  }
  std::optional<storage::StagingBuffers> outgoing;
  if (model.policy().offload.link) outgoing.emplace(model.policy().offload.link);
  size_t first_used = 0;
  while (tiles.next()) {
    Unit& unit = *model.units()[tiles.tile().unit];
    const std::span<const char> used = std::span(plan.used_anywhere).subspan(first_used, unit.params().size());
    {
      const TraceSpan span(TraceLane::kOptimizer, "update of", unit.name());
      update_tile(tiles.tile(), model, used, optimizer, common, outgoing ? &*outgoing : nullptr);
    }
    const bool last_of_unit = tiles.tile().last_of_unit;
    tiles.put_back();
    if (!last_of_unit) continue;
    first_used += unit.params().size();
    updated(unit);
  }
}

}  // namespace tessera::zero
