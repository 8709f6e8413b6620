#include "tessera/zero/persistent_params.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::zero {

PersistentParams::PersistentParams(const layout::FlatLayout& layout, std::vector<size_t> params, comm::Group& group,
                                   const at::Tensor& full)
    : layout_(layout), group_(group), params_(std::move(params)), pieces_(static_cast<size_t>(layout.shards())) {
  TESSERA_INVARIANT(!params_.empty());
  int64_t numel = 0, slot = 0;
  for (const size_t param : params_) {
    places_.push_back(numel);
    numel += layout_.params()[param].padded_numel;
  }
  for (size_t rank = 0; rank < pieces_.size(); ++rank) {
    int64_t length = 0;
    for (size_t index = 0; index < params_.size(); ++index) {
      const layout::FlatParam& param = layout_.params()[params_[index]];
      const layout::Range shard = layout_.shard(static_cast<int64_t>(rank));
      const layout::Range part = layout_.part_of(params_[index], shard);
      if (part.numel() == 0) continue;
      pieces_[rank].push_back({.from = length,
                               .in_shard = param.offset + part.begin - shard.begin,
                               .in_copies = places_[index] + part.begin,
                               .numel = part.numel()});
      length += part.numel();
    }
    slot = std::max(slot, length);
  }
  copies_ = at::empty({numel}, full.options());
  own_slot_ = group_.empty(slot, full.options());
  slots_ = at::empty({slot * layout_.shards()}, full.options());
  take(full);
}

at::Tensor PersistentParams::whole(size_t param) const {
  const auto found = std::find(params_.begin(), params_.end(), param);
  if (found == params_.end()) return {};
  const layout::FlatParam& of = layout_.params()[param];
  return copies_.narrow(0, places_[static_cast<size_t>(found - params_.begin())], of.numel).view(of.shape);
}

void PersistentParams::take(const at::Tensor& full) {
  for (const size_t param : params_) {
    const layout::FlatParam& of = layout_.params()[param];
    whole(param).copy_(full.narrow(0, of.offset, of.numel).view(of.shape));
  }
}

void PersistentParams::refresh(const at::Tensor& shard, const std::string& label) {
  for (const Piece& piece : pieces_[static_cast<size_t>(group_.rank())]) {
    own_slot_.narrow(0, piece.from, piece.numel).copy_(shard.narrow(0, piece.in_shard, piece.numel));
  }
  group_.start_all_gather(slots_, own_slot_, label).finish_for(slots_);
  const int64_t slot = own_slot_.numel();
  for (size_t rank = 0; rank < pieces_.size(); ++rank) {
    for (const Piece& piece : pieces_[rank]) {
      copies_.narrow(0, piece.in_copies, piece.numel)
          .copy_(slots_.narrow(0, static_cast<int64_t>(rank) * slot + piece.from, piece.numel));
    }
  }
}

}  // namespace tessera::zero
