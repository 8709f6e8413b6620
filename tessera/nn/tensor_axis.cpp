#include "tessera/nn/tensor_axis.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/hash.h"
#include "tessera/comm/group.h"
#include "tessera/layout/consecutive_parts.h"
#include "tessera/layout/mesh_shape.h"
#include "tessera/nn/kept_value.h"

namespace tessera::nn {
namespace {

using SharedGroup = std::shared_ptr<comm::Group>;

at::Tensor summed(comm::Group& group, const at::Tensor& own, const std::string& name) {
  at::Tensor sum = group.empty(own.numel(), own.options().requires_grad(false)).view(own.sizes());
  sum.copy_(own);
  group.start_all_reduce(sum.view({-1}), 1, name).finish_for(sum);
  return sum;
}

class IntoParts : public torch::autograd::Function<IntoParts> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const SharedGroup& group,
                            const std::string& name) {
    context->saved_data["group"] = keep(group);
    context->saved_data["name"] = name;
    return x.view_as(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    const auto group = kept<SharedGroup>(context->saved_data["group"]);
    return {summed(*group, grads[0], context->saved_data["name"].toStringRef()), {}, {}};
  }
};

class OutOfParts : public torch::autograd::Function<OutOfParts> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* /*context*/, const at::Tensor& x,
                            const SharedGroup& group, const std::string& name) {
    return summed(*group, x, name);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* /*context*/,
                                                 const torch::autograd::variable_list& grads) {
    return {grads[0], {}, {}};
  }
};

class CountedOnce : public torch::autograd::Function<CountedOnce> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, int64_t ranks) {
    context->saved_data["ranks"] = ranks;
    return x.view_as(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    return {grads[0] / context->saved_data["ranks"].toInt(), {}};
  }
};

class GatherParts : public torch::autograd::Function<GatherParts> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& own, const TensorAxis& axis,
                            const Cut& cut) {
    context->saved_data["begin"] = cut.own().begin;
    context->saved_data["numel"] = cut.own().numel();
    return axis.joined(own, cut);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    return {grads[0].narrow(-1, context->saved_data["begin"].toInt(), context->saved_data["numel"].toInt()), {}, {}};
  }
};

std::vector<layout::Range> uniform_parts(int64_t items, int64_t parts) {
  const std::vector<int64_t> bounds = layout::uniform_bounds(items, parts);
  std::vector<layout::Range> ranges;
  for (size_t part = 0; part + 1 < bounds.size(); ++part) ranges.push_back({bounds[part], bounds[part + 1]});
  return ranges;
}

[[noreturn]] void refuse(const std::string& what, const std::string& key, const std::string& fix) {
  throw Error(ErrorKind::kConfig, {what, key, fix});
}

// The numbers of ranks over which the heads go round, in words.
std::string sizes_that_fit(int64_t heads, int64_t key_heads) {
  std::vector<int64_t> shared;
  for (int64_t each = 2; each <= heads / key_heads; ++each) shared.push_back(each * key_heads);
  std::string text = fmt::format("use at most {} ranks", key_heads);
  for (size_t i = 0; i < shared.size(); ++i) text += fmt::format("{}{}", i == 0 ? ", or " : ", ", shared[i]);
  return text;
}

}  // namespace

Cut Cut::times(int64_t each) const {
  Cut result = *this;
  for (layout::Range& part : result.parts) part = {part.begin * each, part.end * each};
  return result;
}

layout::Shard Cut::shard(int dim, const std::string& axis) const {
  layout::Shard shard{.axis = axis, .dim = dim, .bounds = {0}};
  for (const layout::Range& part : parts) {
    if (part.end != shard.bounds.back()) shard.bounds.push_back(part.end);  // else it is its neighbour's too
  }
  return shard;
}

// A channel of its own: where the axis is the whole run, others exchange over the same group between layers.
TensorAxis::TensorAxis(const SharedGroup& group)
    : size_(group->size()), group_(size_ > 1 ? group->with_channel("tensor") : nullptr) {}

TensorAxis TensorAxis::of_size(int size) {
  TensorAxis axis;
  axis.size_ = size;
  return axis;
}

int TensorAxis::rank() const { return group_ ? group_->rank() : 0; }

comm::Group& TensorAxis::group() const {
  TESSERA_INVARIANT(group_ != nullptr);
  return *group_;
}

TensorAxis TensorAxis::called(const std::string& name) const {
  TensorAxis result = *this;
  result.name_ = name;
  return result;
}

TensorAxis TensorAxis::asked_by(const std::string& key) const {
  TensorAxis result = *this;
  result.key_ = key;
  return result;
}

TensorAxis TensorAxis::in_blocks(int64_t of) const {
  TensorAxis result = *this;
  result.block_ = of;
  return result;
}

Cut TensorAxis::cut_features(int64_t features, const std::string& what) const {
  const bool has_blocks = features % block_ == 0 && features / block_ >= size();
  return has_blocks ? cut(features / block_, what).times(block_) : cut(features, what);
}

Cut TensorAxis::cut(int64_t items, const std::string& what) const {
  if (items < size()) {
    refuse(fmt::format("{} {} cannot be cut over {} ranks", items, what, size()), key_,
           fmt::format("use at most {} ranks", items));
  }
  return {.parts = uniform_parts(items, size()), .rank = rank()};
}

TensorAxis::Heads TensorAxis::cut_heads(int64_t heads, int64_t key_heads) const {
  const int64_t group = heads / key_heads;  // heads that look at one key head
  if (key_heads >= size()) {
    const Cut key = cut(key_heads, "key heads");
    return {.query = key.times(group), .key = key};
  }
  const int64_t sharing = size() / key_heads;  // ranks that hold the same key head
  if (size() % key_heads != 0 || sharing > group) {
    refuse(fmt::format("{} attention heads of {} key heads cannot be cut over {} ranks", heads, key_heads, size()),
           key_, sizes_that_fit(heads, key_heads));
  }
  Heads result{.query = {.rank = rank()}, .key = {.rank = rank()}};
  const std::vector<layout::Range> within = uniform_parts(group, sharing);
  for (int64_t head = 0; head < key_heads; ++head) {
    for (const layout::Range& part : within) {
      result.query.parts.push_back({head * group + part.begin, head * group + part.end});
      result.key.parts.push_back({head, head + 1});
    }
  }
  return result;
}

at::Tensor TensorAxis::into_parts(const at::Tensor& x) const {
  return size_ > 1 ? IntoParts::apply(x, group_, name_) : x;
}

at::Tensor TensorAxis::out_of_parts(const at::Tensor& x) const {
  return size_ > 1 ? OutOfParts::apply(x, group_, name_) : x;
}

at::Tensor TensorAxis::gathered(const at::Tensor& own, const Cut& cut) const {
  return size_ > 1 ? GatherParts::apply(own, *this, cut) : own;
}

at::Tensor TensorAxis::shared_parameter(const at::Tensor& parameter) const {
  return parameter.defined() && parameter.requires_grad() ? into_parts(parameter) : parameter;
}

at::Tensor TensorAxis::counted_once(const at::Tensor& x) const {
  return size_ > 1 ? CountedOnce::apply(x, static_cast<int64_t>(size_)) : x;
}

TensorAxis TensorAxis::sharers(const Cut& cut) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < static_cast<int>(cut.parts.size()); ++rank) {
    if (cut.parts[static_cast<size_t>(rank)] == cut.own()) ranks.push_back(rank);
  }
  if (ranks.size() == 1) return {};
  if (!group_) return of_size(static_cast<int>(ranks.size()));
  return TensorAxis(group_->subgroup(ranks, "tp, of the same key head")).called(name_);
}

// The seed is the next number of the state that all have.
PartRandomness::PartRandomness(const TensorAxis& axis, bool on, at::Device device) {
  if (!on || axis.size() == 1) return;
  const auto seed = at::empty({}, at::TensorOptions(at::kLong).device(device)).random_().item<int64_t>();
  generator_ = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator_.mutex());
  state_ = generator_.get_state();
  generator_.set_current_seed(fnv1a(std::to_string(axis.rank()), kFnvOffset ^ static_cast<uint64_t>(seed)));
}

PartRandomness::~PartRandomness() {
  if (!state_.defined()) return;
  const std::lock_guard lock(generator_.mutex());
  generator_.set_state(state_);
}

at::Tensor TensorAxis::of_all(const at::Tensor& own) const {
  if (size_ == 1) return own.unsqueeze(0);
  const at::NoGradGuard no_grad;
  at::Tensor all = group().empty(own.numel() * size(), own.options().requires_grad(false));
  group().start_all_gather(all, own.contiguous().view({-1}), name_).finish_for(all);
  std::vector<int64_t> shape = own.sizes().vec();
  shape.insert(shape.begin(), size());
  return all.view(shape);
}

at::Tensor TensorAxis::joined(const at::Tensor& own, const Cut& cut) const {
  if (size_ == 1) return own;
  int64_t widest = 0;
  for (const layout::Range& part : cut.parts) widest = std::max(widest, part.numel());
  std::vector<int64_t> shape = own.sizes().vec();
  shape.back() = widest;
  at::Tensor padded = at::zeros(shape, own.options().requires_grad(false));
  padded.narrow(-1, 0, own.size(-1)).copy_(own.detach());
  const at::Tensor all = of_all(padded);
  std::vector<at::Tensor> parts;
  int64_t end = 0;
  for (int64_t rank = 0; rank < size(); ++rank) {
    const layout::Range& part = cut.parts[static_cast<size_t>(rank)];
    if (part.end == end) continue;  // its neighbour's too
    parts.push_back(all.select(0, rank).narrow(-1, 0, part.numel()));
    end = part.end;
  }
  return at::cat(parts, -1);
}

}  // namespace tessera::nn
