// Stage 3, under DeepSpeed's names: small parameters that programs may read at any time, also between a step and the
// next forward (stage3_param_persistence_threshold), of a unit that has larger ones, too. Each has a copy of its whole
// value beside the shards; the copies change with the weights, by one all-gather of what the ranks own of them.
//
// A rank sends (n - 1) slots, n being the ranks that share the unit and a slot the most that one of them owns of these
// parameters. Owned by a Unit, used by its thread. Collectives are those of the unit: every rank's in the same order.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "tessera/comm/group.h"
#include "tessera/layout/flat_layout.h"

namespace tessera::zero {

class PersistentParams {
 public:
  // `params`: their numbers in the layout, at least one. `full`: the gathered buffer, whose values they begin with.
  PersistentParams(const layout::FlatLayout& layout, std::vector<size_t> params, comm::Group& group,
                   const at::Tensor& full);

  // Whole, of the parameter's shape; undefined where it is none of them.
  at::Tensor whole(size_t param) const;

  // From the gathered buffer.
  void take(const at::Tensor& full);

  // After this rank's shard has changed. Collective.
  void refresh(const at::Tensor& shard, const std::string& label);

  int64_t slot_numel() const { return own_slot_.numel(); }
  int64_t bytes() const { return static_cast<int64_t>(copies_.nbytes() + slots_.nbytes() + own_slot_.nbytes()); }

 private:
  // A run of elements of one parameter that a rank owns.
  struct Piece {
    int64_t from;  // in its slot
    int64_t in_shard;
    int64_t in_copies;
    int64_t numel;
  };

  layout::FlatLayout layout_;
  comm::Group& group_;
  std::vector<size_t> params_;
  std::vector<int64_t> places_;             // of each of params_ in copies_
  std::vector<std::vector<Piece>> pieces_;  // of each rank
  at::Tensor copies_;
  at::Tensor own_slot_, slots_;
};

}  // namespace tessera::zero
