#include "tessera/zero/gradient_reducer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::zero {
namespace {

// More would keep more whole gradients in memory at stages 2 and 3; fewer would not overlap with backward. Of small
// ones more, so that ranks need not wait for each other at each of them.
constexpr size_t kMaxInFlight = 2;
constexpr int64_t kMaxSmallInFlight = 64 << 10;  // elements

void zero_padding(const layout::FlatLayout& layout, const at::Tensor& buffer) {
  int64_t end = 0;
  for (const layout::FlatParam& place : layout.params()) {
    end = place.offset + place.padded_numel;
    const int64_t padding = place.padded_numel - place.numel;
    if (padding > 0) buffer.narrow(0, place.offset + place.numel, padding).zero_();
  }
  if (end < layout.numel()) buffer.narrow(0, end, layout.numel() - end).zero_();
}

}  // namespace

GradientReducer::GradientReducer(std::vector<Unit*> units, const Policy& policy, std::vector<DataGroups> groups)
    : units_(std::move(units)), policy_(policy), groups_(std::move(groups)), gradients_(units_.size()) {
  TESSERA_INVARIANT(groups_.size() == units_.size());
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    const size_t count = units_[unit]->params().size();
    gradients_[unit].filled.assign(count, false);
    gradients_[unit].arrived.assign(count, false);
    gradients_[unit].used.assign(count, false);
  }
  if (policy_.offload.link) staging_.emplace(policy_.offload.link);
}

GradientReducer::~GradientReducer() {
  for (const Leaving& leaving : leaving_) {  // the buffers must outlive their transfers
    try {
      leaving.home.finish(leaving.transfer);
    } catch (const Error&) {  // nobody waits for it any more
    }
  }
}

void GradientReducer::open_pending(size_t unit) {
  UnitGradients& gradients = gradients_[unit];
  // A gradient that comes after its unit's reduction (a re-entrant backward, a second one before the step) gets a
  // buffer of its own. The unit's own is nobody else's to read by now, because whoever clears the sums settles before;
  // to settle here would let each unit wait until the ranks behind have read the one before.
  const bool own_buffer = policy_.shard_gradients || gradients.has_sum;
  if (own_buffer) {
    const StateTensor& kept = units_[unit]->grad();
    const at::Device device = units_[unit]->device();
    gradients.pending =
        groups_[unit].shard->empty(units_[unit]->layout().numel(), at::TensorOptions(device).dtype(kept.dtype()));
    zero_padding(units_[unit]->layout(), gradients.pending);
  } else {
    gradients.pending = units_[unit]->grad().tensor();
  }
}

bool GradientReducer::add(size_t unit, size_t param, const at::Tensor& given) {
  const at::NoGradGuard no_grad;
  const at::Tensor grad = given.is_sparse() ? given.to_dense() : given;  // of an embedding
  const auto [values, adds] = place(unit, param);
  if (adds) {
    values.add_(grad.reshape({-1}));
  } else {
    values.copy_(grad.reshape({-1}));
  }
  return taken(unit, param);
}

kernels::GradientTaker::Place GradientReducer::place(size_t unit, size_t param) {
  UnitGradients& gradients = gradients_[unit];
  if (!gradients.pending.defined()) open_pending(unit);
  const layout::FlatParam& place = units_[unit]->layout().params()[param];
  return {.values = gradients.pending.narrow(0, place.offset, place.numel), .adds = gradients.filled[param]};
}

bool GradientReducer::taken(size_t unit, size_t param) {
  const at::NoGradGuard no_grad;
  UnitGradients& gradients = gradients_[unit];
  gradients.filled[param] = true;
  gradients.used[param] = true;
  if (!gradients.arrived[param]) {
    gradients.arrived[param] = true;
    ++gradients.arrived_count;
  }
  const bool complete = gradients.arrived_count == gradients.arrived.size();
  if (complete && reduces_now()) start_complete_units();
  return complete;
}

void GradientReducer::start_complete_units() {
  while (next_to_start_ < units_.size()) {
    const size_t unit = units_.size() - 1 - next_to_start_;
    const UnitGradients& gradients = gradients_[unit];
    if (units_[unit]->trainable() && gradients.arrived_count < gradients.arrived.size()) return;
    ++next_to_start_;
    if (units_[unit]->trainable()) start_reduction(unit);
  }
}

// A parameter that this rank did not use counts as zero.
void GradientReducer::complete_pending(size_t unit) {
  UnitGradients& gradients = gradients_[unit];
  if (!gradients.pending.defined()) open_pending(unit);
  for (size_t param = 0; param < gradients.filled.size(); ++param) {
    const layout::FlatParam& place = units_[unit]->layout().params()[param];
    if (!gradients.filled[param]) gradients.pending.narrow(0, place.offset, place.numel).zero_();
  }
}

void GradientReducer::start_reduction(size_t unit) {
  UnitGradients& gradients = gradients_[unit];
  const DataGroups& groups = groups_[unit];
  complete_pending(unit);
  const layout::FlatLayout& layout = units_[unit]->layout();
  Reduction reduction{.unit = unit, .adds = gradients.has_sum};
  const Averaging& averaging = policy_.averaging;
  const config::ReductionOptions& options = policy_.reduction;
  at::Tensor source = gradients.pending;
  if (averaging.dtype != source.scalar_type()) {
    source = groups.shard->empty(source.numel(), source.options().dtype(averaging.dtype)).copy_(source);
  }
  if (averaging.before != 1) source.mul_(averaging.before);
  const std::string& label = units_[unit]->name();
  const layout::Range shard = layout.shard(groups.shard->rank());
  if (policy_.traffic.quantized_gradients) {
    reduction.quantized.emplace(source, groups, averaging.after, label);
  } else if (policy_.shard_optimizer && options.reduce_scatter) {
    const bool direct =
        !reduction.adds && averaging.dtype == policy_.grad_dtype && units_[unit]->grad().is_on(source.device());
    reduction.result = direct ? owned_grad(unit) : at::empty({shard.numel()}, source.options());
    reduction.collective = groups.shard->start_reduce_scatter(reduction.result, source, averaging.after, label,
                                                              options.reduce_bucket_size);
  } else {
    reduction.collective = groups.shard->start_all_reduce(source, averaging.after, label, options.reduce_bucket_size);
    reduction.result = policy_.shard_optimizer ? source.narrow(0, shard.begin, shard.numel()) : source;
  }
  gradients.pending = at::Tensor();
  std::fill(gradients.filled.begin(), gradients.filled.end(), false);
  gradients.has_sum = true;
  in_flight_.push_back(std::move(reduction));
  in_flight_numel_ += layout.numel();
  if (!options.overlap_comm || groups.all->size() == 1) return finish_oldest();
  while (in_flight_.size() > kMaxInFlight && in_flight_numel_ > kMaxSmallInFlight) finish_oldest();
}

void GradientReducer::finish_oldest() {
  Reduction reduction = std::move(in_flight_.front());
  in_flight_.pop_front();
  in_flight_numel_ -= units_[reduction.unit]->layout().numel();
  if (reduction.quantized) {
    reduction.result = reduction.quantized->take_result();
  } else {
    reduction.collective.take_for(reduction.result);
  }
  const DataGroups& groups = groups_[reduction.unit];
  if (groups.replicate->size() > 1) {  // each of them has the sum over its own shard group
    groups.replicate->start_all_reduce(reduction.result, /*scale=*/1, units_[reduction.unit]->name())
        .finish_for(reduction.result);
  }
  const bool rests_there = units_[reduction.unit]->grad().is_on(reduction.result.device());
  if (staging_ && !rests_there) return start_arriving(std::move(reduction));
  put_away(reduction);
}

// Straight to where it rests, if that is all there is to do with it.
void GradientReducer::start_arriving(Reduction reduction) {
  if (arriving_.size() == storage::StagingBuffers::kCount) finish_oldest_arriving();
  const StateTensor& home = units_[reduction.unit]->grad();
  const at::Tensor on_device = reduction.result;
  const bool direct = !home.swapped() && !reduction.adds && home.dtype() == on_device.scalar_type();
  reduction.result =
      direct ? owned_grad(reduction.unit) : staging_->next(on_device.numel(), on_device.scalar_type()).values;
  reduction.arriving =
      staging_->link().start_to_host(reduction.result, on_device, units_[reduction.unit]->name() + "'s gradients");
  arriving_.push_back(std::move(reduction));
}

void GradientReducer::finish_oldest_arriving() {
  Reduction reduction = std::move(arriving_.front());
  arriving_.pop_front();
  reduction.arriving.finish();
  put_away(reduction);
}

void GradientReducer::finish_arriving() {
  while (!arriving_.empty()) finish_oldest_arriving();
  finish_leaving();
}

void GradientReducer::put_away(Reduction& reduction) {
  if (units_[reduction.unit]->grad().swapped()) return start_leaving(reduction.unit, reduction);
  at::Tensor sum = owned_grad(reduction.unit);
  if (reduction.adds) {
    sum.add_(reduction.result.to(sum.device()));
  } else if (!sum.is_alias_of(reduction.result)) {
    sum.copy_(reduction.result);
  }
}

void GradientReducer::start_leaving(size_t unit, const Reduction& reduction) {
  if (reduction.adds) finish_leaving();  // what is added to may be among them
  if (leaving_.size() == static_cast<size_t>(kMaxLeaving)) finish_oldest_leaving();
  const StateTensor& home = units_[unit]->grad();
  Leaving leaving{.home = home, .buffer = leaving_buffers_.take(static_cast<size_t>(home.bytes())), .transfer = 0};
  const layout::Range whole{0, leaving.home.numel()};
  at::Tensor sum = leaving.home.view_in(leaving.buffer, whole);
  if (reduction.adds) {
    leaving.home.finish(leaving.home.start_read(whole, leaving.buffer));
    sum.add_(reduction.result.to(sum.device()));
  } else {
    sum.copy_(reduction.result);
  }
  gradients_[unit].squares = units_[unit]->counted_squares(sum);
  leaving.transfer = leaving.home.start_write(whole, leaving.buffer);
  leaving_.push_back(std::move(leaving));
}

void GradientReducer::finish_oldest_leaving() {
  leaving_.front().home.finish(leaving_.front().transfer);
  leaving_buffers_.give_back(std::move(leaving_.front().buffer));
  leaving_.pop_front();
}

void GradientReducer::finish_leaving() {
  while (!leaving_.empty()) finish_oldest_leaving();
}

void GradientReducer::finish_own() {
  TESSERA_INVARIANT(!policy_.shard_gradients);
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    if (!units_[unit]->trainable()) continue;
    complete_pending(unit);
    const int ranks = groups_[unit].all->size();
    const double factor = policy_.averaging.before * policy_.averaging.after * ranks;  // 1 for the mean
    if (factor != 1) gradients_[unit].pending.mul_(factor);
  }
}

void GradientReducer::finish_backward() {
  const at::NoGradGuard no_grad;
  if (boundary_ && keeps_own_) finish_own();
  if (reduces_now()) {
    for (; next_to_start_ < units_.size(); ++next_to_start_) {
      const size_t unit = units_.size() - 1 - next_to_start_;
      if (units_[unit]->trainable()) start_reduction(unit);
    }
    while (!in_flight_.empty()) finish_oldest();
    for (size_t unit = units_.size(); unit-- > 0;) {
      if (gradients_[unit].pending.defined()) start_reduction(unit);  // came after its unit's reduction began
    }
    while (!in_flight_.empty()) finish_oldest();
    finish_arriving();
  }
  end_backward();
}

void GradientReducer::abandon() {
  while (!in_flight_.empty()) finish_oldest();
  finish_arriving();
  for (const DataGroups& groups : groups_) groups.all->settle();
  end_backward();
  clear();
}

void GradientReducer::end_backward() {
  next_to_start_ = 0;
  for (UnitGradients& gradients : gradients_) {
    std::fill(gradients.arrived.begin(), gradients.arrived.end(), false);
    gradients.arrived_count = 0;
  }
}

at::Tensor GradientReducer::reduced_shard(size_t unit) const {
  if (policy_.shard_gradients) return units_[unit]->grad().load();
  const layout::Range shard = units_[unit]->layout().shard(groups_[unit].shard->rank());
  return units_[unit]->grad().tensor().narrow(0, shard.begin, shard.numel());
}

void GradientReducer::add_over(size_t unit, comm::Group& group) {
  const at::NoGradGuard no_grad;
  const at::Tensor sum = owned_grad(unit);
  group.start_all_reduce(sum, /*scale=*/1, units_[unit]->name()).finish_for(sum);
  std::vector<bool>& used = gradients_[unit].used;
  const at::Tensor users = at::zeros({static_cast<int64_t>(used.size())}, at::kFloat);
  auto* const counts = users.mutable_data_ptr<float>();
  std::copy(used.begin(), used.end(), counts);
  group.start_all_reduce(users, /*scale=*/1, units_[unit]->name()).finish();
  for (size_t param = 0; param < used.size(); ++param) used[param] = counts[param] > 0;
  if (!units_[unit]->grad().swapped()) return;
  units_[unit]->grad().store(sum);
  gradients_[unit].squares = units_[unit]->counted_squares(sum);
}

optim::SumOfSquares GradientReducer::sum_of_squares(size_t unit) const {
  return units_[unit]->grad().swapped() ? gradients_[unit].squares : units_[unit]->counted_squares(reduced_shard(unit));
}

at::Tensor GradientReducer::owned_grad(size_t unit) const {
  return policy_.shard_optimizer ? reduced_shard(unit) : units_[unit]->grad().tensor();
}

void GradientReducer::clear() {
  for (UnitGradients& gradients : gradients_) {
    gradients.pending = at::Tensor();
    std::fill(gradients.filled.begin(), gradients.filled.end(), false);
    std::fill(gradients.used.begin(), gradients.used.end(), false);
    gradients.has_sum = false;
  }
}

}  // namespace tessera::zero
