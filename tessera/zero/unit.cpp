#include "tessera/zero/unit.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/comm/current_stream.h"
#include "tessera/zero/unreadable.h"

namespace tessera::zero {
namespace {

std::vector<layout::ParamShape> shapes_of(const std::vector<NamedParam>& params) {
  std::vector<layout::ParamShape> shapes;
  for (const NamedParam& param : params) shapes.push_back({param.name(), param.full_shape()});
  return shapes;
}

void set_data(const at::Tensor& parameter, const at::Tensor& data) {
  const_cast<at::Tensor&>(parameter).set_data(data);
}

ErrorReport sharded_weights(const std::string& name) {
  return {"the weights of '" + name + "' are sharded (ZeRO stage 3): this rank holds only its part of them",
          "outside of the engine's forward and backward",
          "run the model through its engine; gather weights before reading them (tessera::Gathered in C++, "
          "zero.GatheredParameters in Python); save them with save_checkpoint or save_16bit_model"};
}

}  // namespace

void free_storage(const at::Tensor& tensor) {
  const c10::DeviceGuard its_device(tensor.device());
  c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(c10::GetAllocator(tensor.device().type())->allocate(0));
  storage->set_nbytes(0);
}

void allocate_storage(const at::Tensor& tensor) {
  const c10::DeviceGuard its_device(tensor.device());
  c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  const size_t bytes = static_cast<size_t>(tensor.numel()) * tensor.element_size();
  storage->set_data_ptr_noswap(c10::GetAllocator(tensor.device().type())->allocate(bytes));
  storage->set_nbytes(bytes);
}

std::vector<int64_t> NamedParam::full_shape() const {
  std::vector<int64_t> whole = shape ? *shape : tensor.sizes().vec();
  if (is_bytes() && !whole.empty()) whole.back() *= static_cast<int64_t>(tensor.element_size());
  return whole;
}

bool NamedParam::has_values() const { return !shape && !is_declared_only(tensor); }

bool is_declared_only(const at::Tensor& tensor) {
  return tensor.numel() > 0 && tensor.storage().nbytes() == 0 && !is_unreadable(tensor);
}

namespace {

// Of a parameter that ranks hold parts of, the whole is computed, and this rank's part kept.
void fill_part(const NamedParam& param, const FillParameter& fill, const at::Tensor& value) {
  const std::vector<int64_t>& cut_shape = param.spec.cut_shape();
  if (param.box == layout::Box::whole(cut_shape)) return fill(param.name(), value);
  at::Tensor whole = at::empty(param.spec.shape, value.options());
  fill(param.name(), whole);
  whole = whole.view(cut_shape);
  for (size_t dim = 0; dim < param.box.extent.size(); ++dim) {
    whole = whole.narrow(static_cast<int64_t>(dim), param.box.offset[dim], param.box.extent[dim]);
  }
  value.view(param.box.extent).copy_(whole);
}

// What rests on disk, or is gathered from elsewhere than the shard, is as sharded as the rest.
bool is_whole_by_persistence(const Policy& policy, const std::vector<NamedParam>& params) {
  if (!policy.shard_parameters || policy.offload.parameters || GatherSource::is_for(policy)) return false;
  return std::all_of(params.begin(), params.end(), [](const NamedParam& param) { return param.persists; });
}

}  // namespace

Unit::Unit(std::string name, std::vector<NamedParam> params, const OptimizerNeeds& needs, const Policy& policy,
           const DataGroups& groups, const FillParameter& fill)
    : name_(std::move(name)),
      params_(std::move(params)),
      policy_(policy),
      groups_(groups),
      layout_(shapes_of(params_), groups_.shard->size()),
      trainable_(params_.front().trainable()),
      needs_(trainable_ ? needs : OptimizerNeeds{}),
      owned_(policy.shard_optimizer ? layout_.shard(groups_.shard->rank()) : layout_.whole()),
      all_persist_(is_whole_by_persistence(policy, params_)) {
  const at::NoGradGuard no_grad;
  if (all_persist_) policy_.shard_parameters = false;
  const at::Device device = policy_.device.value_or(params_.front().tensor.device());
  const auto fp32 = at::TensorOptions().dtype(at::kFloat);
  const at::ScalarType filled = is_bytes() ? at::kByte : at::kFloat;

  // What peers read later; its memory is kept for that. The rest comes from the ordinary allocator.
  const auto shared = [&](int64_t numel, at::ScalarType dtype) {
    return groups_.shard->empty(numel, fp32.device(device).dtype(dtype));
  };
  const bool reads_full = !shards_parameters();

  // The only moment at which more than the policy allows is in the host's memory: one unit in fp32.
  const bool begins_in_place = device.is_cpu() && reads_full && policy.compute_dtype == filled;
  at::Tensor initial =
      begins_in_place ? shared(layout_.numel(), filled).zero_() : at::zeros({layout_.numel()}, fp32.dtype(filled));
  bool any_of_rank_0 = false;
  for (size_t index = 0; index < params_.size(); ++index) {
    const layout::FlatParam& place = layout_.params()[index];
    at::Tensor value = initial.narrow(0, place.offset, place.numel).view(place.shape);
    if (params_[index].has_values()) {
      const at::Tensor& own = params_[index].tensor;
      value.copy_(params_[index].is_bytes() ? own.detach().contiguous().view(at::kByte) : own);
      any_of_rank_0 = true;
    } else {
      TESSERA_INVARIANT(fill != nullptr);
      fill_part(params_[index], fill, value);
    }
  }
  if (any_of_rank_0) groups_.all->start_broadcast(initial, /*root=*/0, name_).finish();

  const auto owned_part = [&](const at::Tensor& whole) { return whole.narrow(0, owned_.begin, owned_.numel()); };
  const Offload& offload = policy_.offload;
  // Of the optimizer; what lies in the file begins as zeros.
  const auto resting = [&](int64_t numel, at::ScalarType dtype) {
    if (offload.optimizer) return StateTensor(offload.optimizer, numel, dtype);
    if (offload.optimizer_on_host) {
      return StateTensor(offload.on_host(offload.optimizer_options, numel, dtype).zero_());
    }
    return StateTensor(at::zeros({numel}, fp32.device(device).dtype(dtype)));
  };
  full_ = begins_in_place ? initial
          : reads_full    ? shared(layout_.numel(), policy_.compute_dtype).copy_(initial)
                          : initial.to(device, policy_.compute_dtype);
  if (GatherSource::is_for(policy_)) source_.emplace(layout_, policy_, groups_, full_);
  if (reads_full) {
    compute_ = StateTensor(owned_part(full_));
  } else if (source_ && source_->own_shard().defined()) {
    compute_ = StateTensor(source_->own_shard());
  } else if (offload.parameters) {
    compute_ = StateTensor(offload.parameters, owned_.numel(), policy_.compute_dtype);
    compute_.store(owned_part(full_));
  } else if (offload.parameters_on_host) {
    const at::Tensor on_host = offload.on_host(offload.param_options, owned_.numel(), policy_.compute_dtype);
    compute_ = StateTensor(on_host.copy_(owned_part(full_)));
  } else {
    compute_ = StateTensor(shared(owned_.numel(), policy_.compute_dtype).copy_(owned_part(full_)));
  }
  if (trainable_) {
    master_ = compute_;
    if (policy_.has_master()) {
      master_ = resting(owned_.numel(), policy_.master_dtype);
      master_.store(owned_part(initial));
    }
    for (size_t k = 0; k < needs_.states; ++k) {
      optimizer_state_.push_back(resting(owned_.numel(), policy_.state_dtype));
    }
    numbers_.assign(params_.size() * needs_.numbers, 0);
    if (needs_.sign_errors && groups_.all->size() > 1) {
      worker_error_ = at::zeros({layout_.numel()}, fp32);
      server_error_ = at::zeros({layout_.shard_numel()}, fp32);
    }
    steps_.assign(params_.size(), 0);
    grad_ = policy_.shard_gradients ? resting(layout_.shard_numel(), policy_.grad_dtype)
                                    : StateTensor(shared(layout_.numel(), policy_.grad_dtype).zero_());
  }
  std::vector<size_t> persistent;
  for (size_t param = 0; param < params_.size(); ++param) {
    if (params_[param].persists) persistent.push_back(param);
  }
  if (shards_parameters() && !persistent.empty() && !compute_.swapped()) {
    persistent_.emplace(layout_, std::move(persistent), *groups_.shard, full_);
  }
  attach_views();
}

void Unit::attach_views() {
  for (size_t index = 0; index < params_.size(); ++index) attach_view(index);
}

void Unit::attach_view(size_t param) {
  const layout::FlatParam& place = layout_.params()[param];
  const at::Tensor view = full_.narrow(0, place.offset, place.numel).view(place.shape);
  set_data(params_[param].tensor, params_[param].is_bytes() ? view.view(params_[param].tensor.scalar_type()) : view);
}

std::vector<size_t> Unit::replaced() const {
  std::vector<size_t> found;
  if (state_ != UnitState::kGathered || is_bytes()) return found;
  const char* const buffer = static_cast<const char*>(full_.const_data_ptr());
  for (size_t param = 0; param < params_.size(); ++param) {
    const at::Tensor& own = params_[param].tensor;
    const char* const place = buffer + layout_.params()[param].offset * static_cast<int64_t>(full_.element_size());
    if (own.numel() != 0 && own.const_data_ptr() != place) found.push_back(param);
  }
  return found;
}

void Unit::attach_placeholders() {
  for (size_t index = placeholders_.size(); index < params_.size(); ++index) {
    const at::Tensor& own = params_[index].tensor;  // whole at the first release
    const std::vector<int64_t> shape = policy_.placeholders_as_deepspeed ? std::vector<int64_t>{0} : own.sizes().vec();
    const at::Tensor whole = persistent_ ? persistent_->whole(index) : at::Tensor();
    placeholders_.push_back(whole.defined() ? whole
                                            : unreadable(shape, full_.options().dtype(own.scalar_type()),
                                                         sharded_weights(params_[index].name())));
  }
  for (size_t index = 0; index < params_.size(); ++index) set_data(params_[index].tensor, placeholders_[index]);
}

bool Unit::take_back(size_t param) {
  const at::Tensor& own = params_[param].tensor;
  const at::Tensor given = own.variable_data();
  if (given.scalar_type() != full_.scalar_type() || given.sizes() != at::IntArrayRef(layout_.params()[param].shape))
    return false;
  const at::NoGradGuard no_grad;
  attach_view(param);
  own.detach().copy_(given);
  return true;
}

Unit::~Unit() {
  try {
    forget_fetch();         // its buffer must outlive the transfer
  } catch (const Error&) {  // nobody waits for it any more
  }
}

void Unit::start_fetch() {
  if (state_ == UnitState::kSharded && compute_.swapped() && policy_.offload.fetches->has_spare()) fetch();
}

void Unit::fetch() {
  if (fetched_) return;
  fetched_ = policy_.offload.fetches->take(static_cast<size_t>(compute_.bytes()));
  fetching_ = compute_.start_read({0, compute_.numel()}, *fetched_);
}

void Unit::forget_fetch() {
  if (state_ != UnitState::kSharded || !fetched_) return;
  compute_.finish(fetching_);
  give_back_fetched();
}

void Unit::give_back_fetched() {
  if (!fetched_) return;
  policy_.offload.fetches->give_back(std::move(*fetched_));
  fetched_.reset();
}

void Unit::start_gather(Values values) {
  if (state_ != UnitState::kSharded) return;
  const at::NoGradGuard no_grad;
  if (source_ && (values == Values::kOfPasses || !source_->quantizes())) {
    allocate_full();
    source_->start_gather(full_, name_);
    coarse_ = source_->quantizes();
    state_ = UnitState::kGathering;
    return;
  }
  at::Tensor shard;
  if (compute_.swapped()) {
    fetch();
    compute_.finish(fetching_);
    shard = compute_.view_in(*fetched_, {0, compute_.numel()});
  } else {
    shard = compute_.tensor();
  }
  allocate_full();
  state_ = UnitState::kGathering;
  if (shard.device() == device() || !groups_.shard->connects(device())) {
    gathering_ = groups_.shard->start_all_gather(full_, shard, name_);
    return;
  }
  const at::Tensor place = full_.narrow(0, owned_.begin, owned_.numel());
  coming_ = policy_.offload.link->start_to_device(place, shard, name_ + "'s parameters");
  const c10::StreamGuard after_it(policy_.offload.link->to_device());
  gathering_ = groups_.shard->start_all_gather(full_, place, name_);
}

void Unit::finish_gather() {
  if (state_ == UnitState::kGathered) return;
  TESSERA_INVARIANT(state_ == UnitState::kGathering);
  const at::NoGradGuard no_grad;
  if (source_ && source_->is_gathering()) {
    source_->take_gathered(full_);
  } else if (fetched_) {
    if (coming_.in_flight()) {
      gathering_.finish_for(full_);
      storage::HostLink::Copy(coming_).finish();
    } else {
      gathering_.finish();  // others read the buffer that it came in
    }
    give_back_fetched();
  } else if (gathering_.in_flight()) {
    gathering_.take_for(full_);
  }
  if (coming_.in_flight()) coming_.wait_on(comm::current_stream(device()));
  attach_views();
  state_ = UnitState::kGathered;
}

void Unit::release(Views views) {
  if (!shards_parameters()) return;
  TESSERA_INVARIANT(state_ == UnitState::kGathered);
  const at::NoGradGuard no_grad;
  attach_placeholders();
  if (views == Views::kKeepBytes && !is_bytes() && full_.storage().use_count() > 1) {
    const std::vector<int64_t> shape = full_.sizes().vec();
    const at::TensorOptions options = full_.options();
    full_.reset();
    full_ = at::empty(shape, options);
  }
  free_full();
  coarse_ = false;
  state_ = UnitState::kSharded;
}

void Unit::allocate_full() {
  if (!device().is_cpu()) allocated_on_ = comm::current_stream(device());
  allocate_storage(full_);
}

// A device's allocator gives memory to whoever asks next on the stream for which it was allocated, in the order of that
// one alone.
void Unit::free_full() {
  if (allocated_on_) {
    const c10::Stream used_on = comm::current_stream(device());
    if (used_on != *allocated_on_) {
      c10::impl::VirtualGuardImpl(device().type()).recordDataPtrOnStream(full_.storage().data_ptr(), used_on);
    }
  }
  free_storage(full_);
}

void Unit::take_over(int root) {
  TESSERA_INVARIANT(state_ == UnitState::kGathered);
  const at::NoGradGuard no_grad;
  for (const size_t param : replaced()) take_back(param);
  groups_.all->start_broadcast(full_, root, name_).finish();
  const at::Tensor owned = full_.narrow(0, owned_.begin, owned_.numel());
  groups_.all->settle();
  if (shards_parameters()) compute_.store(owned);
  if (source_) source_->take(full_);
  if (trainable_ && policy_.has_master()) master_.store(owned);
  if (persistent_) persistent_->take(full_);
}

void Unit::refresh_compute() {
  forget_fetch();
  if (!trainable_ || !policy_.has_master()) return;
  const at::NoGradGuard no_grad;
  if (compute_.is_on(device()) && !master_.is_on(device()) && policy_.offload.link) {
    const at::Tensor rounded = policy_.offload.link->memory().empty(owned_.numel(), policy_.compute_dtype);
    rounded.copy_(master_.load());
    policy_.offload.link->start_to_device(compute_.tensor(), rounded, name_ + "'s parameters").finish();
  } else {
    compute_.store(master_.load());
  }
}

void Unit::round_master() {
  if (!trainable_ || !policy_.has_master()) return;
  const at::NoGradGuard no_grad;
  master_.store(compute_.load());
}

void Unit::start_publish() {
  refreshes_ = persistent_.has_value();
  if (source_) return source_->start_refresh(compute_.load(), name_);
  if (shards_parameters() || !policy_.shard_optimizer) return;
  TESSERA_INVARIANT(!publishing_.in_flight());
  publishing_ = groups_.shard->start_all_gather(full_, compute_.tensor(), name_);
}

void Unit::finish_persistent() {
  if (all_persist_ && publishing_.in_flight()) std::exchange(publishing_, {}).finish_for(full_);
  if (!std::exchange(refreshes_, false)) return;
  persistent_->refresh(compute_.tensor(), name_);
}

void Unit::finish_publish() {
  finish_persistent();
  if (source_) source_->finish_refresh();
  if (publishing_.in_flight()) std::exchange(publishing_, {}).finish_for(full_);
}

void Unit::take_published() {
  if (publishing_.in_flight()) std::exchange(publishing_, {}).take_for(full_);
}

layout::Range Unit::saved_by(int rank) const {
  const int shards = groups_.shard->size();
  return layout::part_of(layout_.shard(rank % shards), rank / shards, groups_.replicate->size(), layout::kAlignNumel);
}

optim::SumOfSquares Unit::counted_squares(const at::Tensor& shard) const {
  optim::SumOfSquares sum;
  if (groups_.replicate->rank() > 0) return sum;
  const auto counts = [](const NamedParam& param) { return param.counts; };
  if (std::all_of(params_.begin(), params_.end(), counts)) {
    sum.add(shard);
    return sum;
  }
  const layout::Range range = layout_.shard(groups_.shard->rank());
  for (const layout::Segment& segment : layout_.segments(range)) {
    if (!params_[segment.param].counts) continue;
    sum.add(shard.narrow(0, segment.offset - range.begin, segment.numel));
  }
  return sum;
}

Unit::Bytes Unit::model_state_bytes() const {
  Bytes bytes;
  const auto count = [&](const StateTensor& tensor) {
    if (tensor.defined()) (tensor.swapped() ? bytes.disk : bytes.memory) += tensor.bytes();
  };
  count(shards_parameters() ? compute_ : StateTensor(full_));
  if (persistent_) bytes.memory += persistent_->bytes();
  if (source_) bytes.memory += source_->bytes() - (source_->own_shard().defined() ? compute_.bytes() : 0);
  if (policy_.has_master()) count(master_);
  for (const StateTensor& state : optimizer_state_) count(state);
  count(StateTensor(worker_error_));
  count(StateTensor(server_error_));
  count(grad_);
  return bytes;
}

}  // namespace tessera::zero
