// Where each parameter of a unit lies in the unit's flat buffer, and which part of that buffer each rank owns.
// Arithmetic only: no tensors, no communication, so every case can be tested.
//
//   buffer   [ wq . | wk . | wv . | wo . | pad ]   numel() elements, a multiple of shards() * kAlignNumel
//   shards   [ rank 0   | rank 1   | rank 2    ]   shard_numel() elements each, equal on every rank
//
// Each parameter begins at a multiple of kAlignNumel elements (64 bytes in 16-bit dtypes), so every shard and every
// part of a parameter that a shard holds is aligned for vector instructions. A parameter may straddle shards. All
// offsets and lengths are in elements, never bytes. Immutable after construction; safe to read from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/layout/range.h"

namespace tessera::layout {

inline constexpr int64_t kAlignNumel = 32;

struct ParamShape {
  std::string name;
  std::vector<int64_t> shape;
};

struct FlatParam {
  std::string name;
  std::vector<int64_t> shape;
  int64_t numel = 0;
  int64_t offset = 0;        // of the first element in the buffer
  int64_t padded_numel = 0;  // up to the next parameter, or the end of the buffer's parameters
};

// The part of one parameter that lies in some range of the buffer.
struct Segment {
  size_t param = 0;          // index into params()
  int64_t offset = 0;        // of the part in the buffer
  int64_t numel = 0;         // real elements, > 0
  int64_t padded_numel = 0;  // real elements and the padding behind them, a multiple of kAlignNumel
  int64_t first = 0;         // index of the part's first element in the flattened parameter
};

class FlatLayout {
 public:
  FlatLayout(const std::vector<ParamShape>& params, int64_t shards);

  const std::vector<FlatParam>& params() const { return params_; }
  int64_t shards() const { return shards_; }
  int64_t numel() const { return shard_numel_ * shards_; }
  int64_t shard_numel() const { return shard_numel_; }
  int64_t param_numel() const { return param_numel_; }  // without padding

  Range whole() const { return {0, numel()}; }
  Range shard(int64_t rank) const { return {rank * shard_numel_, (rank + 1) * shard_numel_}; }

  // In buffer order. `range` begins and ends at multiples of kAlignNumel.
  std::vector<Segment> segments(Range range) const;

  // The elements of the flattened parameter that lie in a range of the buffer; empty where there are none.
  Range part_of(size_t param, Range buffer) const;

  // … in each rank's shard.
  std::vector<Range> parts_of(size_t param) const;

 private:
  std::vector<FlatParam> params_;
  int64_t shards_;
  int64_t shard_numel_ = 0;
  int64_t param_numel_ = 0;
};

}  // namespace tessera::layout
