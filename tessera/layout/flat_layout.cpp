#include "tessera/zero/layout.h"

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::zero {
namespace {

int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

}  // namespace

Layout::Layout(const std::vector<ParamShape>& params, int64_t world_size) : world_size_(world_size) {
  TESSERA_INVARIANT(world_size > 0);
  int64_t offset = 0;
  for (const ParamShape& param : params) {
    int64_t numel = 1;
    for (const int64_t size : param.shape) numel *= size;
    const int64_t padded_numel = round_up(numel, kAlignNumel);
    params_.push_back({param.name, param.shape, numel, offset, padded_numel});
    offset += padded_numel;
    param_numel_ += numel;
  }
  slice_numel_ = round_up(offset, kAlignNumel * world_size) / world_size;
}

std::vector<Segment> Layout::segments(Range range) const {
  TESSERA_INVARIANT(range.begin % kAlignNumel == 0 && range.end % kAlignNumel == 0);
  std::vector<Segment> result;
  for (size_t index = 0; index < params_.size(); ++index) {
    const Placement& param = params_[index];
    const int64_t begin = std::max(range.begin, param.offset);
    const int64_t padded_end = std::min(range.end, param.offset + param.padded_numel);
    const int64_t end = std::min(padded_end, param.offset + param.numel);
    if (begin >= end) continue;
    result.push_back({index, begin, end - begin, padded_end - begin, begin - param.offset});
  }
  return result;
}

}  // namespace tessera::zero
