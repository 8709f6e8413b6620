// A reduce-scatter of gradients in few bits (qgZ of ZeRO++, Wang et al. 2023, 3.3): by all-to-all, so that each sum is
// made of what was rounded once, in two levels, so that little crosses between the inner groups of zero/data_groups.h:
//
//   1. within the inner group, in 8 bits: rank i gets every peer's gradients for the shards of its outer group, and
//      adds them up in fp32, its own as they are;
//   2. within the outer group, in 4 bits: each rank gets the sums for its shard, and adds them up likewise.
//
//   bytes that a rank sends, of n ranks in inner groups of h, shards of s elements, and q(x) = x + 4 x / 256:
//   (h - 1) q(s n/h) + (n/h - 1) (q(s) - s / 2)
//
// Sums are added in rank order of the inner groups, then of those: the same bits whatever the transport.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "tessera/zero/data_groups.h"

namespace tessera::zero {

class QuantizedReduction {
 public:
  // `source`: the whole buffer, groups.shard's size times a shard; read before this returns. The first level goes its
  // way meanwhile. Collective.
  QuantizedReduction(const at::Tensor& source, const DataGroups& groups, double scale, std::string label);

  // scale * sum over the ranks of groups.shard, fp32, this rank's shard. Waits for both levels; once. Collective.
  at::Tensor take_result();

 private:
  // What travels in one level: a piece of `sum`'s numel for each rank of a group.
  struct Level {
    std::vector<at::Tensor> incoming, outgoing;
    comm::Collective moving;
  };
  static Level start(comm::Group& group, const std::vector<at::Tensor>& pieces, int bits, const std::string& label);
  static at::Tensor sum_of(Level& level, comm::Group& group, const at::Tensor& own, int bits);

  DataGroups groups_;
  double scale_;
  std::string label_;
  at::Tensor own_;  // of the first level: this rank's gradients for its outer group's shards
  Level within_;
};

}  // namespace tessera::zero
