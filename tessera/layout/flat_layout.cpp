#include "tessera/layout/flat_layout.h"

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::layout {

FlatLayout::FlatLayout(const std::vector<ParamShape>& params, int64_t shards) : shards_(shards) {
  TESSERA_INVARIANT(shards > 0);
  int64_t offset = 0;
  for (const ParamShape& param : params) {
    int64_t numel = 1;
    for (const int64_t size : param.shape) numel *= size;
    const int64_t padded_numel = round_up(numel, kAlignNumel);
    params_.push_back({param.name, param.shape, numel, offset, padded_numel});
    offset += padded_numel;
    param_numel_ += numel;
  }
  shard_numel_ = round_up(offset, kAlignNumel * shards) / shards;
}

std::vector<Segment> FlatLayout::segments(Range range) const {
  TESSERA_INVARIANT(range.begin % kAlignNumel == 0 && range.end % kAlignNumel == 0);
  std::vector<Segment> result;
  for (size_t index = 0; index < params_.size(); ++index) {
    const FlatParam& param = params_[index];
    const int64_t begin = std::max(range.begin, param.offset);
    const int64_t padded_end = std::min(range.end, param.offset + param.padded_numel);
    const int64_t end = std::min(padded_end, param.offset + param.numel);
    if (begin >= end) continue;
    result.push_back({index, begin, end - begin, padded_end - begin, begin - param.offset});
  }
  return result;
}

Range FlatLayout::part_of(size_t param, Range buffer) const {
  const FlatParam& place = params_[param];
  const auto element = [&](int64_t at) { return std::clamp<int64_t>(at - place.offset, 0, place.numel); };
  return {element(buffer.begin), element(buffer.end)};
}

std::vector<Range> FlatLayout::parts_of(size_t param) const {
  std::vector<Range> parts;
  for (int64_t rank = 0; rank < shards_; ++rank) parts.push_back(part_of(param, shard(rank)));
  return parts;
}

}  // namespace tessera::layout
