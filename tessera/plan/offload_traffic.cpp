#include "tessera/plan/offload_traffic.h"

#include <algorithm>
#include <vector>

#include "tessera/layout/range.h"

namespace tessera::plan {
namespace {

// As zero/state_tiles.cpp cuts units, elements.
constexpr int64_t kLargestTile = 8 << 20;
constexpr int64_t kTileAlign = 2048;
constexpr int64_t kTensorsBesideState = 3;  // weight, gradient, compute weight

struct UnitShard {
  int64_t numel;
  int64_t bytes;    // of compute weights
  int64_t trained;  // of those
  bool optimizer_leaves;
  bool params_leave;
};

// Whole units leave: for the optimizer the first ones, of parameters all that max_in_cpu has no room for.
std::vector<UnitShard> shards_of(const ModelCensus& model, const TrainingSetup& setup) {
  const bool offloads_optimizer = setup.stage >= 1 && setup.optimizer != OffloadTo::kNone;
  const bool params_on_nvme = setup.stage == 3 && setup.params == OffloadTo::kNvme;
  const double leaving = setup.optimizer_ratio * static_cast<double>(model.trained());
  int64_t before = 0, left_in_memory = setup.max_in_cpu;
  std::vector<UnitShard> shards;
  for (const UnitCensus& unit : model.units) {
    const int64_t numel = layout::ceil_div(unit.held(), setup.ranks);
    left_in_memory -= numel;
    shards.push_back({.numel = numel,
                      .bytes = unit.bytes(bytes_of(setup.dtypes.compute), setup.ranks),
                      .trained = unit.trained_shard(setup.ranks),
                      .optimizer_leaves = offloads_optimizer && static_cast<double>(before) < leaving,
                      .params_leave = params_on_nvme && left_in_memory < 0});
    before += unit.trained();
  }
  return shards;
}

// Bytes of an element that a tile brings, for the optimizer's offload: master weight, state, gradient.
int64_t optimizer_bytes_each(const TrainingSetup& setup) {
  if (setup.optimizer != OffloadTo::kNvme) return 0;
  int64_t bytes = setup.state_tensors * bytes_of(setup.dtypes.state);
  if (setup.dtypes.compute != setup.dtypes.master) bytes += bytes_of(setup.dtypes.master);
  if (setup.stage >= 2) bytes += bytes_of(setup.dtypes.grad);
  return bytes;
}

// Elements for which the buffers of a slot have room, by what they hold.
struct TileSlot {
  int64_t optimizer = 0;
  int64_t params = 0;
};

int64_t bytes_of_tiles(const std::vector<UnitShard>& shards, const TrainingSetup& setup) {
  const int64_t overlapped = 1 + (setup.pipeline_read ? 1 : 0) + (setup.pipeline_write ? 1 : 0);
  const int64_t asked_for = setup.optimizer_buffers / (kTensorsBesideState + setup.state_tensors);
  const int64_t largest = std::max(kTileAlign, std::min(setup.sub_group_size, kLargestTile) / kTileAlign * kTileAlign);
  std::vector<TileSlot> slots(static_cast<size_t>(std::max(overlapped, asked_for)));
  size_t tile = 0;
  for (const UnitShard& shard : shards) {
    const bool is_cut = setup.elementwise && (shard.optimizer_leaves || shard.params_leave);
    for (int64_t left = shard.trained; left > 0; ++tile) {
      const int64_t numel = is_cut ? std::min(left, largest) : left;
      TileSlot& slot = slots[tile % slots.size()];
      if (shard.optimizer_leaves) slot.optimizer = std::max(slot.optimizer, numel);
      if (shard.params_leave) slot.params = std::max(slot.params, numel);
      left -= numel;
    }
  }
  const int64_t optimizer_bytes = optimizer_bytes_each(setup), param_bytes = bytes_of(setup.dtypes.compute);
  int64_t bytes = 0;
  for (const TileSlot& slot : slots) bytes += slot.optimizer * optimizer_bytes + slot.params * param_bytes;
  return bytes;
}

// Backward reduces neighbours one after the other: while one is written the next is made.
int64_t bytes_of_leaving_gradients(const std::vector<UnitShard>& shards, const TrainingSetup& setup) {
  if (setup.stage < 2 || setup.optimizer != OffloadTo::kNvme) return 0;
  int64_t most = 0, last = 0;
  for (const UnitShard& shard : shards) {
    if (!shard.optimizer_leaves) break;
    most = std::max(most, last + shard.trained);
    last = shard.trained;
  }
  return most * bytes_of(setup.dtypes.grad);
}

// The largest, and of the others, which are blocks, those that the prefetching has room and buffers for.
int64_t bytes_of_fetched_params(const std::vector<UnitShard>& shards, const TrainingSetup& setup) {
  std::vector<UnitShard> leaving;
  for (const UnitShard& shard : shards) {
    if (shard.params_leave) leaving.push_back(shard);
  }
  std::sort(leaving.begin(), leaving.end(), [](const UnitShard& a, const UnitShard& b) { return a.bytes > b.bytes; });
  int64_t bytes = 0, ahead = setup.prefetch_bucket_size;
  for (size_t i = 0; i < std::min(leaving.size(), static_cast<size_t>(setup.param_buffers)); ++i) {
    if (i > 0) ahead -= leaving[i].numel * setup.ranks;  // it counts whole units
    if (ahead < 0) break;
    bytes += leaving[i].bytes;
  }
  return bytes;
}

}  // namespace

OffloadTraffic offload_traffic(const ModelCensus& model, const TrainingSetup& setup) {
  const std::vector<UnitShard> shards = shards_of(model, setup);
  OffloadTraffic traffic{.tile_bytes = bytes_of_tiles(shards, setup),
                         .gradient_bytes = bytes_of_leaving_gradients(shards, setup),
                         .param_bytes = bytes_of_fetched_params(shards, setup)};
  for (const UnitShard& shard : shards) {
    if (shard.optimizer_leaves) traffic.optimizer_numel += shard.trained;
    if (shard.params_leave) traffic.params_bytes += shard.bytes;
  }
  return traffic;
}

}  // namespace tessera::plan
