#include "tessera/zero/gather_source.h"

#include <ATen/ops/empty.h>

#include <utility>

#include "tessera/base/error.h"
#include "tessera/kernels/block_quantization.h"

namespace tessera::zero {
namespace {

bool quantizes(const Policy& policy) { return policy.traffic.quantized_weights && policy.compute_dtype != at::kByte; }

}  // namespace

bool GatherSource::is_for(const Policy& policy) {
  return policy.shard_parameters && (policy.traffic.secondary_shards || zero::quantizes(policy));
}

GatherSource::GatherSource(const layout::FlatLayout& layout, const Policy& policy, const DataGroups& groups,
                           const at::Tensor& full)
    : groups_(groups),
      secondary_(policy.traffic.secondary_shards),
      quantizes_(zero::quantizes(policy)),
      shard_numel_(layout.shard_numel()),
      piece_numel_(quantizes_ ? kernels::quantized_bytes(shard_numel_, kernels::kGatheredBits) : shard_numel_) {
  const at::TensorOptions options = full.options().dtype(quantizes_ ? at::kByte : policy.compute_dtype);
  kept_ = gatherers().empty((secondary_ ? groups_.outer->size() : 1) * piece_numel_, options);
  take(full);
}

void GatherSource::fill(int64_t index, const at::Tensor& shard) const {
  const at::Tensor kept = piece(index);
  if (quantizes_) {
    kernels::quantize(shard, kernels::kGatheredBits, kept);
  } else if (!kept.is_alias_of(shard)) {
    kept.copy_(shard);
  }
}

void GatherSource::take(const at::Tensor& full) {
  gatherers().settle();
  for (int64_t index = 0; index < pieces(); ++index) {
    const int64_t rank = secondary_ ? index * groups_.inner->size() + groups_.inner->rank() : groups_.shard->rank();
    fill(index, full.narrow(0, rank * shard_numel_, shard_numel_));
  }
}

void GatherSource::start_refresh(const at::Tensor& shard, const std::string& label) {
  TESSERA_INVARIANT(!refreshing_.in_flight() && gathering_.empty());
  gatherers().settle();
  fill(own_piece(), shard);
  if (pieces() > 1) refreshing_ = groups_.outer->start_all_gather(kept_, piece(own_piece()), label);
}

void GatherSource::finish_refresh() {
  if (refreshing_.in_flight()) std::exchange(refreshing_, {}).finish_for(kept_);
}

void GatherSource::start_gather(const at::Tensor& full, const std::string& label) {
  TESSERA_INVARIANT(gathering_.empty());
  finish_refresh();
  comm::Group& group = gatherers();
  const int64_t together = group.size() * piece_numel_;
  arrives_ = quantizes_ ? at::empty({pieces() * together}, kept_.options()) : full;
  for (int64_t index = 0; index < pieces(); ++index) {
    gathering_.push_back(group.start_all_gather(arrives_.narrow(0, index * together, together), piece(index), label));
  }
}

void GatherSource::take_gathered(const at::Tensor& full) {
  for (comm::Collective& each : gathering_) each.take_for(arrives_);
  gathering_.clear();
  if (quantizes_) {
    for (int64_t rank = 0; rank < groups_.shard->size(); ++rank) {
      kernels::dequantize(arrives_.narrow(0, rank * piece_numel_, piece_numel_), kernels::kGatheredBits,
                          full.narrow(0, rank * shard_numel_, shard_numel_));
    }
  }
  arrives_.reset();
}

}  // namespace tessera::zero
