#include "tessera/zero/wire_bytes.h"

#include "tessera/comm/exchange.h"
#include "tessera/kernels/block_quantization.h"

namespace tessera::zero {
namespace {

int64_t bytes_of(at::ScalarType dtype) { return static_cast<int64_t>(c10::elementSize(dtype)); }

// Of `numel` elements of so many bytes each.
int64_t all_reduce(int64_t numel, int64_t bytes, int64_t ranks) {
  if (!comm::Exchange::reduces_in_shards(numel, static_cast<int>(ranks))) return (ranks - 1) * numel * bytes;
  return 2 * (ranks - 1) * (numel / ranks) * bytes;
}

}  // namespace

WireBytes wire_bytes(const Unit& unit, const Policy& policy) {
  const DataGroups& groups = unit.groups();
  const int64_t ranks = groups.shard->size(), inner = groups.inner->size(), outer = groups.outer->size();
  const int64_t shard = unit.layout().shard_numel();
  const int64_t compute = bytes_of(unit.compute().dtype());
  WireBytes bytes;
  if (unit.shards_parameters()) {
    const int64_t piece = policy.traffic.quantized_weights && !unit.is_bytes()
                              ? kernels::quantized_bytes(shard, kernels::kGatheredBits)
                              : shard * compute;
    if (policy.traffic.secondary_shards) {
      bytes.gather = (inner - 1) * outer * piece;
      bytes.publish = (outer - 1) * piece;
      bytes.of_outer = bytes.publish;
    } else {
      bytes.gather = (ranks - 1) * piece;
      bytes.of_outer = (ranks - inner) * piece;
    }
    if (const PersistentParams* persistent = unit.persistent()) {
      bytes.publish += (ranks - 1) * persistent->slot_numel() * compute;
      bytes.of_outer += (ranks - inner) * persistent->slot_numel() * compute;
    }
  } else if (policy.shard_optimizer) {
    bytes.publish = (ranks - 1) * shard * compute;
    bytes.of_outer = (ranks - inner) * shard * compute;
  }
  if (!unit.trainable()) return bytes;
  const int64_t grad = bytes_of(policy.averaging.dtype);
  if (policy.traffic.quantized_gradients) {
    const int64_t between = (outer - 1) * kernels::quantized_bytes(shard, kernels::kOuterBits);
    bytes.reduce = (inner - 1) * kernels::quantized_bytes(shard * outer, kernels::kInnerBits) + between;
    bytes.of_outer += between;
  } else if (policy.shard_optimizer && policy.reduction.reduce_scatter) {
    bytes.reduce = (ranks - 1) * shard * grad;
    bytes.of_outer += (ranks - inner) * shard * grad;
  } else {
    bytes.reduce = all_reduce(unit.layout().numel(), grad, ranks);
    bytes.of_outer += bytes.reduce / (ranks > 1 ? ranks - 1 : 1) * (ranks - inner);
  }
  const int64_t reduced = policy.traffic.quantized_gradients ? bytes_of(at::kFloat) : grad;
  bytes.reduce += all_reduce(policy.shard_optimizer ? shard : unit.layout().numel(), reduced, groups.replicate->size());
  return bytes;
}

}  // namespace tessera::zero
