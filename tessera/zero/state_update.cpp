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
#include "tessera/optim/clip.h"
#include "tessera/zero/shared_gradients.h"
#include "tessera/zero/update_batch.h"

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

std::vector<layout::Segment> owned_segments(const Unit& unit) {
  return owned_segments(unit, {0, unit.owned().numel()});
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
  UpdateBatch batch(model, optimizer, common, outgoing ? &*outgoing : nullptr);
  std::vector<Unit*> complete;  // with what is in the batch
  const auto update_batch = [&] {
    batch.update();
    for (Unit* const unit : complete) updated(*unit);
    complete.clear();
  };
  size_t first_used = 0;
  while (tiles.next()) {
    const StateTile& tile = tiles.tile();
    if (!batch.takes(tile)) update_batch();
    Unit& unit = *model.units()[tile.unit];
    const bool waits = batch.add(tile, std::span(plan.used_anywhere).subspan(first_used, unit.params().size()));
    if (!waits) batch.update();
    tiles.put_back();
    if (tile.last_of_unit) {
      complete.push_back(&unit);
      first_used += unit.params().size();
    }
    if (!waits) update_batch();
  }
  update_batch();
}

}  // namespace tessera::zero
