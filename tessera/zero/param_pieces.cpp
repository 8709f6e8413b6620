#include "tessera/zero/param_pieces.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>

namespace tessera::zero {

Range piece_in(const Layout& layout, Range buffer, size_t param) {
  const Placement& place = layout.params()[param];
  const auto element = [&](int64_t at) { return std::clamp<int64_t>(at - place.offset, 0, place.numel); };
  return {element(buffer.begin), element(buffer.end)};
}

std::vector<Range> pieces_of(const Layout& layout, size_t param) {
  std::vector<Range> pieces;
  for (int64_t rank = 0; rank < layout.world_size(); ++rank) {
    pieces.push_back(piece_in(layout, layout.slice(rank), param));
  }
  return pieces;
}

at::Tensor assembled(const std::vector<Range>& pieces, const at::Tensor& mine, comm::Communicator& world,
                     const std::string& label) {
  const at::NoGradGuard no_grad;
  const at::Tensor whole = at::empty({pieces.back().end}, mine.options());
  std::vector<comm::Collective> arriving;
  for (int rank = 0; rank < world.size(); ++rank) {
    const Range piece = pieces[static_cast<size_t>(rank)];
    if (piece.numel() == 0) continue;
    at::Tensor part = whole.narrow(0, piece.begin, piece.numel());
    if (rank == world.rank()) part.copy_(mine);
    arriving.push_back(world.start_broadcast(part, rank, label));
  }
  for (comm::Collective& each : arriving) each.finish();
  return whole;
}

}  // namespace tessera::zero
