// The ranks that share a unit, as an optimizer may ask them: see optim::Peers.
#pragma once

#include <vector>

#include "tessera/comm/communicator.h"
#include "tessera/optim/optimizer.h"
#include "tessera/zero/unit.h"

namespace tessera::zero {

class UnitPeers : public optim::Peers {
 public:
  // Both are borrowed.
  UnitPeers(const Unit& unit, comm::Communicator& world) : unit_(unit), world_(world) {}

  std::vector<double> sum_by_param(std::span<const optim::ParamSlice> slices, std::span<const double> of_slices,
                                   size_t width) override;
  std::vector<at::Tensor> whole_grads(std::span<const optim::ParamSlice> slices) override;

 private:
  bool holds_all() const { return unit_.owned().numel() == unit_.layout().numel(); }

  const Unit& unit_;
  comm::Communicator& world_;
};

}  // namespace tessera::zero
