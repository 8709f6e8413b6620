#include "tessera/engine/traffic.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/kernels/block_quantization.h"
#include "tessera/zero/wire_bytes.h"

namespace tessera::engine {
namespace {

constexpr const char* kHpz = "zero_optimization.zero_hpz_partition_size";

// The axes that lie within dp_shard: an inner group has whole ones of them.
int64_t within_shard_axis(const layout::MeshShape& shape) {
  return int64_t{shape.size(layout::kExpertAxis)} * shape.size(layout::kContextAxis);
}

int inner_ranks_of(int64_t wanted, const layout::MeshShape& shape) {
  const int64_t shards = shape.shards(), within = within_shard_axis(shape);
  if (wanted <= shards && shards % wanted == 0 && wanted % within == 0) return static_cast<int>(wanted);
  std::vector<int64_t> fine;
  for (int64_t ranks = within; ranks <= shards; ranks += within) {
    if (shards % ranks == 0) fine.push_back(ranks);
  }
  throw Error(
      ErrorKind::kConfig,
      {fmt::format("parameters are sharded over {}, which do not make groups of {}{}", count_of(shards, "rank"), wanted,
                   within > 1 ? fmt::format(", each with all {} of one sample or one set of experts", within) : ""),
       kHpz, fmt::format("use one of {}", fmt::join(fine, ", "))});
}

// The ranks of a shard group that are on one host; 0 where that is not known, or not the same everywhere.
int ranks_a_host(comm::Mesh& mesh) {
  const std::vector<std::string> sizes =
      mesh.world()->exchange_texts(std::to_string(mesh.world()->local_size()), "ranks of each host");
  const int each = std::stoi(sizes.front());
  const bool alike = std::all_of(sizes.begin(), sizes.end(), [&](const auto& size) { return size == sizes.front(); });
  if (!alike || each == 0) return 0;
  const zero::DataGroups groups = zero::DataGroups::of(mesh, /*shards_anything=*/true);
  const std::vector<int>& ranks = groups.shard->members();
  const auto on_first = static_cast<int>(
      std::count_if(ranks.begin(), ranks.end(), [&](int rank) { return rank / each == ranks.front() / each; }));
  for (size_t index = 0; index < ranks.size(); ++index) {
    const size_t first = index - index % static_cast<size_t>(on_first);
    if (ranks[index] / each != ranks[first] / each) return 0;
  }
  const bool divides = mesh.shape().shards() % on_first == 0 && on_first % within_shard_axis(mesh.shape()) == 0;
  return divides ? on_first : 0;
}

}  // namespace

zero::Traffic traffic_of(const config::ZeroOptions& zero, comm::Mesh& mesh, at::Device device) {
  const config::TrafficOptions& wanted = zero.traffic;
  zero::Traffic traffic{.secondary_shards = wanted.zero_hpz_partition_size > 1,
                        .quantized_weights = wanted.quantized_weights,
                        .quantized_gradients = wanted.quantized_gradients};
  const bool keeps = traffic.secondary_shards || traffic.quantized_weights;
  if (keeps && !device.is_cpu() && zero.offload_param.device != "none") {
    throw Error(ErrorKind::kConfig,
                {"ZeRO++ keeps on the device what it gathers, and offload_param keeps it in the host's memory",
                 "zero_optimization", "remove one of the two"});
  }
  if (traffic.secondary_shards) {
    traffic.inner_ranks = inner_ranks_of(wanted.zero_hpz_partition_size, mesh.shape());
  } else if (traffic.quantized_gradients) {
    traffic.inner_ranks = ranks_a_host(mesh);
  }
  return traffic;
}

void check_traffic(const config::ZeroOptions& zero, const layout::MeshShape& mesh) {
  if (zero.traffic.zero_hpz_partition_size > 1) inner_ranks_of(zero.traffic.zero_hpz_partition_size, mesh);
}

std::string traffic_in_words(const zero::ShardedModel& model) {
  const zero::Traffic& traffic = model.policy().traffic;
  zero::WireBytes sum;
  int inner = 1, outer = 1;
  for (const auto& unit : model.units()) {
    const zero::WireBytes bytes = zero::wire_bytes(*unit, model.policy());
    sum.gather += bytes.gather;
    sum.publish += bytes.publish;
    sum.reduce += bytes.reduce;
    inner = std::max(inner, unit->groups().inner->size());
    outer = std::max(outer, unit->groups().outer->size());
  }
  const auto bytes = [](int64_t count) { return format_bytes(static_cast<uint64_t>(count)); };
  std::vector<std::string> parts;
  if (traffic.secondary_shards || traffic.quantized_weights) {
    std::string how = traffic.secondary_shards ? fmt::format(" within groups of {}", count_of(inner, "rank")) : "";
    if (traffic.quantized_weights) how += fmt::format(" in {} bits", kernels::kGatheredBits);
    parts.push_back(fmt::format("parameters are gathered{}: a rank sends {}", how, bytes(sum.gather)));
    if (traffic.secondary_shards) parts.back() += fmt::format(", and {} after a step", bytes(sum.publish));
  }
  if (traffic.quantized_gradients) {
    std::string how = fmt::format(" in {} bits within groups of {}", kernels::kInnerBits, count_of(inner, "rank"));
    if (outer > 1) how += fmt::format(" and in {} between them", kernels::kOuterBits);
    parts.push_back(fmt::format("gradients are reduced{}: a rank sends {}", how, bytes(sum.reduce)));
  }
  if (parts.empty()) return "";
  return fmt::format("ZeRO++: {}", fmt::join(parts, "; "));
}

}  // namespace tessera::engine
