// The training state of a model part by part, as an optimizer step works on it:
//
//   for (StateTiles tiles(model, cuts); tiles.next();) {
//     … update tiles.tile() …
//     tiles.put_back();
//   }
//
// A tile is a unit's owned part; or, where state of the unit rests in a swap file and the optimizer may be cut, at most
// largest_tile() elements of it. What rests in memory is given as it is; what rests in the file is read before,
// and written after, through buffers of bounded size: one tile's, and one more for reading ahead and for writing behind
// each. Every rank sees its units in the same order, but not the same number of tiles.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "tessera/zero/sharded_model.h"

namespace tessera::zero {

struct StateTile {
  size_t unit = 0;
  layout::Range range;  // within the unit's owned part: begins at 0
  at::Tensor weight, grad;
  at::Tensor compute;  // undefined where `weight` is the compute weight itself
  std::vector<at::Tensor> state;
  bool first_of_unit = false;
  bool last_of_unit = false;
  bool swapped = false;  // some of it lies in buffers that later tiles use again
};

// Elements of a tile at most, where a unit may be cut: sub_group_size, but no more than 8 Mi.
int64_t largest_tile(const Offload& offload);

// Tiles that may be in memory at a time.
int64_t tile_slots(const ShardedModel& model);

class StateTiles {
 public:
  // `cuts`: a tile may be a part of a unit. The model, which owns the buffers, outlives this. With `grads`, the owned
  // part of each unit's, they take the place of the reducer's, and tiles are without compute weights, which others use.
  StateTiles(ShardedModel& model, bool cuts, const std::vector<at::Tensor>* grads = nullptr);
  ~StateTiles();

  bool next();
  StateTile& tile() { return tile_; }

  // The tile's tensors were changed: weight, state, compute. Also when they were not, once for each tile.
  void put_back();

 private:
  struct Cut {
    size_t unit;
    layout::Range range;
  };

  TileBuffers& buffers_of(size_t number) { return slots_[number % slots_.size()]; }
  void start_reading(size_t number);
  void finish_writing(TileBuffers& buffers);

  at::Tensor grad_of(size_t unit) const;

  ShardedModel& model_;
  const std::vector<at::Tensor>* grads_;
  const Offload& offload_;
  std::vector<TileBuffers>& slots_;
  std::vector<Cut> cuts_;
  size_t next_ = 0;     // to give out
  size_t started_ = 0;  // tiles whose reading has begun
  StateTile tile_;
};

}  // namespace tessera::zero
