#include "tessera/zero/quantized_reduction.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>

#include "tessera/base/error.h"
#include "tessera/kernels/block_quantization.h"

namespace tessera::zero {

QuantizedReduction::Level QuantizedReduction::start(comm::Group& group, const std::vector<at::Tensor>& pieces, int bits,
                                                    const std::string& label) {
  Level level;
  const auto own = static_cast<size_t>(group.rank());
  for (size_t rank = 0; rank < pieces.size(); ++rank) {
    const int64_t bytes = rank == own ? 0 : kernels::quantized_bytes(pieces[rank].numel(), bits);
    const at::TensorOptions options = pieces[rank].options().dtype(at::kByte);
    level.outgoing.push_back(group.empty(bytes, options));
    level.incoming.push_back(at::empty({bytes}, options));
    if (rank != own) kernels::quantize(pieces[rank], bits, level.outgoing.back());
  }
  level.moving = group.start_all_to_all(level.incoming, level.outgoing, label);
  return level;
}

at::Tensor QuantizedReduction::sum_of(Level& level, comm::Group& group, const at::Tensor& own, int bits) {
  level.moving.take_for(own);
  at::Tensor sum = at::zeros_like(own, at::kFloat);
  for (size_t rank = 0; rank < level.incoming.size(); ++rank) {
    if (rank == static_cast<size_t>(group.rank())) {
      sum.add_(own);
    } else {
      kernels::add_dequantized(level.incoming[rank], bits, sum);
    }
  }
  return sum;
}

QuantizedReduction::QuantizedReduction(const at::Tensor& source, const DataGroups& groups, double scale,
                                       std::string label)
    : groups_(groups), scale_(scale), label_(std::move(label)) {
  const int64_t near = groups_.inner->size(), far = groups_.outer->size();
  TESSERA_INVARIANT(source.numel() % (near * far) == 0);
  const at::Tensor shards = source.view({far, near, source.numel() / (near * far)});
  std::vector<at::Tensor> pieces;  // for rank i: the shards of the i-th ranks of all inner groups
  for (int64_t rank = 0; rank < near; ++rank) pieces.push_back(shards.select(1, rank).reshape({-1}));
  own_ = pieces[static_cast<size_t>(groups_.inner->rank())].clone();
  within_ = start(*groups_.inner, pieces, kernels::kInnerBits, label_);
}

at::Tensor QuantizedReduction::take_result() {
  at::Tensor sum = sum_of(within_, *groups_.inner, own_, kernels::kInnerBits);
  own_.reset();
  const int64_t far = groups_.outer->size();
  if (far > 1) {
    const std::vector<at::Tensor> pieces = sum.view({far, -1}).unbind(0);
    Level between = start(*groups_.outer, pieces, kernels::kOuterBits, label_);
    sum = sum_of(between, *groups_.outer, pieces[static_cast<size_t>(groups_.outer->rank())], kernels::kOuterBits);
  }
  return sum.mul_(scale_);
}

}  // namespace tessera::zero
