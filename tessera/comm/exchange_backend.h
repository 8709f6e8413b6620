// An exchange as torch.distributed's process groups use it: every collective of c10d::Backend, out of the few that an
// exchange has.
//
// A Work is carried on by whoever waits for it; one whose future is asked for, or that is polled, by a thread of the
// backend's own. Sums (and averages) of floating dtypes are ordered sums in fp32 (ordered_sum.h); other reductions and
// other dtypes go through ATen's operators, in rank order too. Not supported: receiving from any rank, sparse tensors.
#pragma once

#include <chrono>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "tessera/comm/exchange.h"

namespace tessera::comm {

// `name` is what the backend calls itself; `timeout` holds for each wait that does not say its own.
c10::intrusive_ptr<c10d::Backend> make_c10d_backend(const std::string& name, std::shared_ptr<Exchange> exchange,
                                                    int rank, int size, std::chrono::milliseconds timeout);

}  // namespace tessera::comm
