// Collectives between ranks of one host through shared memory.
//
// What a rank has to send it *lends*: a post in its mailbox (mailbox.h) tells the readers where the bytes lie. If the
// tensor was allocated here (empty()), that is the tensor itself, so a reduction reads the peers' parts in place and
// a gather is one copy; the rank then waits until they have read it. A tensor from elsewhere is copied into this rank's
// segment, piece by piece, two pieces at a time, and so is anything small.
//
// There is no thread: everything in flight advances whenever somebody starts or waits for a collective. So nothing
// can block because ranks wait for theirs in different orders. Sums are added in rank order (ordered_sum.h).
//
// A peer that ends, in whatever way, fails the waits for it within a tenth of a second.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "tessera/comm/exchange.h"

namespace tessera::comm::shm {

// The host of each rank, as a text: one kernel, one network namespace, one user, and TESSERA_HOST where that is set
// (for containers that share a kernel but no memory). Collective; throws as join() does.
std::vector<std::string> hosts_of_ranks(c10d::Store& store, int rank, int size, std::chrono::milliseconds timeout);

struct Refusal {
  std::string reason;     // which rank could not, and why
  bool expected = false;  // nothing is wrong: the ranks are simply not on one host
};

// Joins `size` ranks of one host over `store`. Collective, all or nothing: either every rank gets an exchange, or
// every rank gets none and the refusal. ErrorKind::kPeer: a rank did not join in time.
std::unique_ptr<Exchange> join(c10d::Store& store, int rank, int size, std::chrono::milliseconds timeout,
                               Refusal& refusal);

// The same of ranks that are known to be on one host, where rank 0 among them is rank `first` of the world.
std::unique_ptr<Exchange> join_host(c10d::Store& store, int first, int rank, int size,
                                    std::chrono::milliseconds timeout, Refusal& refusal);

}  // namespace tessera::comm::shm
