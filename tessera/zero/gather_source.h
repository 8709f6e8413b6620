// From what a unit's parameters come together at stage 3, where ZeRO++ (Wang et al. 2023) makes that less than every
// rank's shard of them, to spare the network:
//
//   hpZ   the secondary shard: the shards of this rank's outer group, so that the inner group has all and gathers them
//         alone. They go round once after each step.
//   qwZ   the same, or the shard, in 8 bits (kernels/block_quantization.h): what is gathered, then, is what comes out,
//         the same on every rank, the owner's included.
//
//   bytes that a rank sends, of n ranks in inner groups of h; a shard of s elements of b bytes, or q = s + 4 s / 256:
//                       a gather                a step
//   plain               (n - 1) b s             0
//   qwZ                 (n - 1) q               0
//   hpZ                 (h - 1) n/h b s         (n/h - 1) b s
//   both                (h - 1) n/h q           (n/h - 1) q
//
// and what stays in memory for it: n/h times what one piece has (of hpZ alone the rank's own shard is one of them).
//
// Owned by a Unit, used by its thread. Its collectives are those of the unit: every rank's in the same order.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "tessera/layout/flat_layout.h"
#include "tessera/zero/data_groups.h"
#include "tessera/zero/policy.h"

namespace tessera::zero {

class GatherSource {
 public:
  // Whether a policy wants one. Bytes are gathered as they are.
  static bool is_for(const Policy& policy);

  // From the gathered parameters, which every rank has. Nothing is sent.
  GatherSource(const layout::FlatLayout& layout, const Policy& policy, const DataGroups& groups,
               const at::Tensor& full);

  // hpZ alone: this rank's shard, which lies in the secondary shard. Otherwise undefined.
  at::Tensor own_shard() const { return quantizes_ ? at::Tensor() : piece(own_piece()); }
  bool quantizes() const { return quantizes_; }

  // The gathered parameters were written to, on every rank alike.
  void take(const at::Tensor& full);

  // After this rank's shard has changed; until finish_refresh() nothing is gathered.
  void start_refresh(const at::Tensor& shard, const std::string& label);
  void finish_refresh();

  // `full`: as comm::Group::start_all_gather.
  void start_gather(const at::Tensor& full, const std::string& label);
  void take_gathered(const at::Tensor& full);
  bool is_gathering() const { return !gathering_.empty(); }

  int64_t bytes() const { return static_cast<int64_t>(kept_.nbytes()); }

 private:
  at::Tensor piece(int64_t index) const { return kept_.narrow(0, index * piece_numel_, piece_numel_); }
  int64_t pieces() const { return kept_.numel() / piece_numel_; }
  int64_t own_piece() const { return secondary_ ? groups_.outer->rank() : 0; }
  comm::Group& gatherers() const { return secondary_ ? *groups_.inner : *groups_.shard; }
  void fill(int64_t index, const at::Tensor& shard) const;

  DataGroups groups_;
  bool secondary_;
  bool quantizes_;
  int64_t shard_numel_;
  int64_t piece_numel_;  // of what stands for a shard
  at::Tensor kept_;
  comm::Collective refreshing_;
  std::vector<comm::Collective> gathering_;  // of each piece
  at::Tensor arrives_;
};

}  // namespace tessera::zero
