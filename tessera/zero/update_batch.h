// Tiles of training state whose parameters an optimizer updates in one call: a call takes microseconds, which each of
// many small units would pay.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tessera/optim/optimizer.h"
#include "tessera/zero/sharded_model.h"
#include "tessera/zero/state_tiles.h"

namespace tessera::zero {

// A tile's tensors as the optimizer takes them: the tensors themselves, or copies that are rounded or moved back once
// they are updated. All of them are where the optimizer's states rest, since these are the most bytes. An optimizer
// that takes any dtype does so on the CPU; elsewhere it gets fp32, as others do. What goes to a device from here goes
// while the next tile is updated; the current stream waits for it.
class OptimizerTensors {
 public:
  // `outgoing`: null where nothing goes to a device. `name`, of the tile's unit, outlives this.
  OptimizerTensors(StateTile tile, bool any_dtype, storage::StagingBuffers* outgoing, const std::string& name);

  void put_back();

  at::Tensor weight, grad, compute;
  std::vector<at::Tensor> state;

 private:
  bool leaves(const at::Tensor& kept) const { return outgoing_ != nullptr && device_.is_cpu() && !kept.is_cpu(); }
  at::Tensor prepared(const at::Tensor& tensor) const;
  void put_back(const at::Tensor& kept, const at::Tensor& updated);

  StateTile tile_;
  at::Device device_;
  bool any_dtype_;
  storage::StagingBuffers* outgoing_;
  storage::StagingBuffers::Buffer* leaving_ = nullptr;  // what of it this tile has
  const std::string& name_;
};

class UpdateBatch {
 public:
  static constexpr int64_t kMostNumel = 64 << 10;  // of several tiles together: what they are fits into a core's cache

  // All of it outlives this. `outgoing`: as above.
  UpdateBatch(ShardedModel& model, const optim::Optimizer& optimizer, const optim::UpdateInput& common,
              storage::StagingBuffers* outgoing)
      : model_(model), optimizer_(optimizer), common_(common), outgoing_(outgoing) {}

  // Whether the tile may be updated together with what is here already.
  bool takes(const StateTile& tile) const { return parts_.empty() || (shares(tile) && has_room_for(tile)); }

  // `used`: of the unit's parameters, from the first, those that had a gradient somewhere; of others nothing changes.
  // False: update() now, before the next tile is asked for.
  bool add(const StateTile& tile, std::span<const char> used);

  // All that was added. Collective where the optimizer asks its peers.
  void update();

 private:
  bool shares(const StateTile& tile) const;
  std::vector<layout::Segment> segments_of(const Unit& unit, layout::Range range) const;
  bool has_room_for(const StateTile& tile) const { return numel_ + tile.range.numel() <= kMostNumel; }

  ShardedModel& model_;
  const optim::Optimizer& optimizer_;
  const optim::UpdateInput& common_;
  storage::StagingBuffers* outgoing_;

  struct Part {
    size_t unit;
    int64_t numel;
    OptimizerTensors tensors;
  };
  std::vector<Part> parts_;
  std::vector<optim::WholeParam> params_;
  std::vector<optim::ParamShard> shards_;
  int64_t numel_ = 0;
};

// Where a range of the unit's owned part lies, cut into parts that lie in one rank's shard each, also at stage 0, so
// that what an optimizer adds up over parts is added in the same order at every stage.
std::vector<layout::Segment> owned_segments(const Unit& unit, layout::Range range);

}  // namespace tessera::zero
