// The ranks that share a unit, as an optimizer may ask them: see optim::Peers.
#pragma once

#include <vector>

#include "tessera/comm/group.h"
#include "tessera/optim/optimizer.h"
#include "tessera/zero/unit.h"

namespace tessera::zero {

class UnitPeers : public optim::Peers {
 public:
  // Both are borrowed. `group`: the ranks over which the unit is sharded.
  UnitPeers(Unit& unit, comm::Group& group) : unit_(unit), group_(group) {}

  std::vector<double> sum_by_param(std::span<const optim::ParamShard> shards, std::span<const double> of_shards,
                                   size_t width) override;
  void mean_by_signs(std::span<const optim::ParamShard> shards, std::span<at::Tensor> values,
                     std::span<const at::Tensor> live) override;
  void clear_sign_errors() override;
  std::vector<at::Tensor> whole_grads(std::span<const optim::ParamShard> shards) override;

 private:
  int owner_of(const optim::ParamShard& shard) const;
  bool holds_all() const { return unit_.owned().numel() == unit_.layout().numel(); }

  Unit& unit_;
  comm::Group& group_;
};

}  // namespace tessera::zero
