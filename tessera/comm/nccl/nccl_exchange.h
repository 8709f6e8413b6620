// An exchange of tensors on one device through NCCL: straight into the given tensors, on a stream of its own
// (communicator.h). Its first collective says which device; a communicator comes up then, under a key made of the
// members and that collective's tag, which is the same on all of them.
//
// What differs from exchange.h: NCCL knows no tags, so collectives meet in the order in which they are started, and
// messages of two ranks in one direction in the order in which they are sent; collectives that ranks may interleave
// differently need an exchange each (channel()). All tensors are on the device. Errors: PeerFailure, with rank -1 where
// nobody is known to be missing.
//
// Sums are NCCL's: in the dtype of `full`, scaled before they are added (in 16 bits that also keeps sums of fp16 from
// overflowing), in an order that NCCL chooses. With `sums_in_rank_order` parts are sent to the rank that adds them, as
// ordered_sum.h does: the bits are those of the CPU, and what arrives needs memory of `bucket_numel` elements. So are
// fp32 shards of a narrower `full` made in either case.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "tessera/comm/exchange.h"

namespace tessera::comm::nccl {

struct Run;

struct NcclPlace {
  std::vector<int> members;  // ranks in the world
  int rank;                  // index in `members`
  bool sums_in_rank_order = false;
};

// `bytes_sent`: to count in.
std::unique_ptr<Exchange> make_nccl_exchange(std::shared_ptr<Run> run, NcclPlace place,
                                             std::shared_ptr<std::atomic<int64_t>> bytes_sent);

}  // namespace tessera::comm::nccl
