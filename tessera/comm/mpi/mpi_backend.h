// Messages between ranks over MPI, as a c10d::Backend: send and recv with tags, which is what MessageExchange makes its
// collectives of.
//
// MPI's own collectives are not used. Those of one communicator have to be started in one order on all ranks, where
// ours are matched by tag, because the gathers and the reductions of stage 3 may overtake each other and a rank that
// diverges must not get its peers' bytes. And they add in an order of their own, where our sums are added in rank order
// in fp32 (Note [Same bits at every stage]). What remains, a gather, costs one message a peer either way.
//
// Any thread may use it. Messages move while some rank's thread is inside a call (library.h): a wait carries on
// everything in flight, but nothing moves while a rank only computes, unless the fabric does it by itself.
#pragma once

#include <chrono>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

namespace tessera::comm::mpi {

// `ranks_of_job`: of each rank of this backend, its rank in the MPI job. Collective among these. `timeout` holds for
// waits that do not say their own.
c10::intrusive_ptr<c10d::Backend> make_backend(int rank, const std::vector<int>& ranks_of_job,
                                               std::chrono::milliseconds timeout);

}  // namespace tessera::comm::mpi
