#include "tessera/zero/param_pieces.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/base/format.h"

namespace tessera::zero {

at::Tensor assembled(const std::vector<layout::Range>& pieces, const at::Tensor& mine, comm::Group& group,
                     const std::string& label) {
  const at::NoGradGuard no_grad;
  const at::Tensor whole = at::empty({pieces.back().end}, mine.options());
  std::vector<comm::Collective> arriving;
  for (int rank = 0; rank < group.size(); ++rank) {
    const layout::Range piece = pieces[static_cast<size_t>(rank)];
    if (piece.numel() == 0) continue;
    at::Tensor part = whole.narrow(0, piece.begin, piece.numel());
    if (rank == group.rank()) part.copy_(mine);
    arriving.push_back(group.start_broadcast(part, rank, label));
  }
  for (comm::Collective& each : arriving) each.finish();
  return whole;
}

void require_writer(int rank, int ranks) {
  if (rank >= 0 && rank < ranks) return;
  throw Error(ErrorKind::kUsage, {fmt::format("there is no rank {} among {}", rank, count_of(ranks, "rank")),
                                  "the rank that writes to gathered parameters", "name one that there is"});
}

}  // namespace tessera::zero
