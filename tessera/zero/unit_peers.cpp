#include "tessera/zero/unit_peers.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::zero {

std::vector<double> UnitPeers::sum_by_param(std::span<const optim::ParamSlice> slices,
                                            std::span<const double> of_slices, size_t width) {
  TESSERA_INVARIANT(of_slices.size() == slices.size() * width);
  std::vector<double> sums(unit_.params().size() * width, 0);
  for (size_t slice = 0; slice < slices.size(); ++slice) {
    for (size_t k = 0; k < width; ++k) sums[slices[slice].param * width + k] += of_slices[slice * width + k];
  }
  if (holds_all()) return sums;

  const auto count = static_cast<int64_t>(sums.size());
  at::Tensor own = at::empty({count}, at::kDouble);
  std::copy(sums.begin(), sums.end(), own.mutable_data_ptr<double>());
  at::Tensor all = at::empty({count * world_.size()}, at::kDouble);
  world_.start_all_gather(all, own, unit_.name() + ": sums").finish();
  std::fill(sums.begin(), sums.end(), 0);
  const double* const values = all.const_data_ptr<double>();
  for (int rank = 0; rank < world_.size(); ++rank) {
    for (int64_t i = 0; i < count; ++i) sums[i] += values[rank * count + i];
  }
  return sums;
}

std::vector<at::Tensor> UnitPeers::whole_grads(std::span<const optim::ParamSlice> slices) {
  const Layout& layout = unit_.layout();
  const Range own = unit_.owned();
  at::Tensor buffer = at::zeros({layout.numel()}, at::kFloat);
  for (const optim::ParamSlice& slice : slices) {
    const int64_t offset = layout.params()[slice.param].offset + slice.first;
    buffer.narrow(0, offset, slice.grad.numel()).copy_(slice.grad);
  }
  if (!holds_all()) {
    world_.start_all_gather(buffer, buffer.narrow(0, own.begin, own.numel()), unit_.name() + ": matrices").finish();
  }
  std::vector<at::Tensor> wholes(layout.params().size());
  for (const optim::ParamSlice& slice : slices) {
    const Placement& place = layout.params()[slice.param];
    wholes[slice.param] = buffer.narrow(0, place.offset, place.numel);
  }
  return wholes;
}

}  // namespace tessera::zero
