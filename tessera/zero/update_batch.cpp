#include "tessera/zero/update_batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/trace.h"
#include "tessera/comm/current_stream.h"
#include "tessera/zero/unit_peers.h"

namespace tessera::zero {
namespace {

// From a range of what this rank owns of the unit.
layout::Range in_buffer(const Unit& unit, layout::Range range) {
  return {unit.owned().begin + range.begin, unit.owned().begin + range.end};
}

}  // namespace

OptimizerTensors::OptimizerTensors(StateTile tile, bool any_dtype, storage::StagingBuffers* outgoing,
                                   const std::string& name)
    : tile_(std::move(tile)),
      device_((tile_.state.empty() ? tile_.weight : tile_.state.front()).device()),
      any_dtype_(any_dtype && device_.is_cpu()),
      outgoing_(outgoing),
      name_(name) {
  weight = prepared(tile_.weight);
  grad = prepared(tile_.grad);
  for (const at::Tensor& each : tile_.state) state.push_back(prepared(each));
  if (!any_dtype_ || !tile_.compute.defined()) return;
  leaving_ = leaves(tile_.compute) ? &outgoing_->next(tile_.compute.numel(), tile_.compute.scalar_type()) : nullptr;
  compute = leaving_ != nullptr ? leaving_->values : tile_.compute;
}

void OptimizerTensors::put_back() {
  put_back(tile_.weight, weight);
  for (size_t k = 0; k < state.size(); ++k) put_back(tile_.state[k], state[k]);
  if (tile_.compute.defined()) put_back(tile_.compute, any_dtype_ ? compute : tile_.weight);
}

at::Tensor OptimizerTensors::prepared(const at::Tensor& tensor) const {
  const at::ScalarType dtype = any_dtype_ ? tensor.scalar_type() : at::kFloat;
  if (tensor.device() == device_ && tensor.scalar_type() == dtype) return tensor;
  if (!leaves(tensor)) return tensor.to(device_, dtype);
  const at::Tensor arrived = outgoing_->link().memory().empty(tensor.numel(), tensor.scalar_type());
  outgoing_->link().start_to_host(arrived, tensor, name_).finish();
  return arrived.to(dtype);
}

void OptimizerTensors::put_back(const at::Tensor& kept, const at::Tensor& updated) {
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

// Staging buffers and those of swapped tiles are used again by the next tile; peers are one unit's.
bool UpdateBatch::shares(const StateTile& tile) const {
  return optimizer_.elementwise() && outgoing_ == nullptr && !tile.swapped;
}

bool UpdateBatch::add(const StateTile& tile, std::span<const char> used) {
  Unit& unit = *model_.units()[tile.unit];
  parts_.push_back({.unit = tile.unit,
                    .numel = tile.range.numel(),
                    .tensors = {tile, optimizer_.takes_any_dtype(), outgoing_, unit.name()}});
  numel_ += tile.range.numel();
  const size_t first_param = params_.size();
  for (size_t param = 0; param < unit.params().size(); ++param) {
    if (tile.first_of_unit && used[param]) ++unit.steps()[param];
    const layout::FlatParam& place = unit.layout().params()[param];
    params_.push_back({place.name, place.shape, place.numel, unit.params()[param].group});
  }
  const OptimizerTensors& tensors = parts_.back().tensors;
  for (const layout::Segment& segment : segments_of(unit, tile.range)) {
    if (!used[segment.param]) continue;
    const int64_t begin = segment.offset - unit.owned().begin - tile.range.begin;
    const auto part = [&](const at::Tensor& owned) { return elements(owned, {begin, begin + segment.padded_numel}); };
    optim::ParamShard shard{.weight = part(tensors.weight), .grad = part(tensors.grad)};
    for (const at::Tensor& state : tensors.state) shard.state.push_back(part(state));
    if (tensors.compute.defined()) shard.compute = part(tensors.compute);
    shard.step = unit.steps()[segment.param];
    shard.group = unit.params()[segment.param].group;
    shard.numbers = unit.numbers(segment.param);
    shard.param = first_param + segment.param;
    shard.first = segment.first;
    shards_.push_back(std::move(shard));
  }
  return shares(tile) && numel_ < kMostNumel;
}

void UpdateBatch::update() {
  if (parts_.empty()) return;
  const auto begin = std::chrono::steady_clock::now();
  std::optional<UnitPeers> peers;
  if (!optimizer_.elementwise()) {
    TESSERA_INVARIANT(parts_.size() == 1);
    const size_t unit = parts_.front().unit;
    peers.emplace(*model_.units()[unit], *model_.groups_of(unit).shard);
  }
  optim::UpdateInput input = common_;
  input.params = params_;
  input.peers = peers ? &*peers : nullptr;
  optimizer_.update(shards_, input);
  for (Part& part : parts_) part.tensors.put_back();
  if (tracing()) {  // each has its share of the time
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    int64_t done = 0;
    const auto at = [&] {
      const auto since = took * (static_cast<double>(done) / static_cast<double>(numel_));
      return begin + std::chrono::duration_cast<std::chrono::steady_clock::duration>(since);
    };
    for (const Part& part : parts_) {
      const auto from = at();
      done += part.numel;
      trace({TraceLane::kOptimizer, fmt::format("update of {}", model_.units()[part.unit]->name()), from, at()});
    }
  }
  parts_.clear();
  params_.clear();
  shards_.clear();
  numel_ = 0;
}

std::vector<layout::Segment> UpdateBatch::segments_of(const Unit& unit, layout::Range range) const {
  return optimizer_.elementwise() ? unit.layout().segments(in_buffer(unit, range)) : owned_segments(unit, range);
}

std::vector<layout::Segment> owned_segments(const Unit& unit, layout::Range range) {
  const layout::Range wanted = in_buffer(unit, range);
  std::vector<layout::Segment> all;
  for (int64_t rank = 0; rank < unit.layout().shards(); ++rank) {
    const layout::Range shard = unit.layout().shard(rank);
    const layout::Range part{std::max(shard.begin, wanted.begin), std::min(shard.end, wanted.end)};
    if (part.begin >= part.end) continue;
    for (const layout::Segment& segment : unit.layout().segments(part)) all.push_back(segment);
  }
  return all;
}

}  // namespace tessera::zero
