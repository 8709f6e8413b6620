// One communicator of NCCL, and the one thread that uses it. Collectives are handed over in order; the thread brings
// the communicator up at the first one, starts each on a stream of its own, and watches them. So whoever starts a
// collective never waits, for the other ranks least of all, and ranks may begin with different communicators without
// waiting for each other in a circle.
//
//   start     an event on the caller's stream says when the tensors are ready
//   (thread)  the communicator's stream waits for that event, runs the collective, and records a second event
//   finish()  the host waits until the second event has passed;  wait_on(stream): that stream waits for it
//
// A collective's tensors are held until its event has passed. One that has not ended within the time-out, or an error
// that NCCL reports, aborts the communicator: kernels that still run end, and every call from then on throws the same
// PeerFailure. It names the first member that has not started this collective, or does not answer (below); -1 where all
// have. Nothing here calls NCCL so that it may block: communicators come up with `blocking = 0` and are asked.
//
// Who is missing, through the store: a rank whose wait is over sets "asked"; the threads of the others, which look
// every two seconds, answer with how many collectives they have started.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "tessera/comm/exchange.h"
#include "tessera/comm/nccl/library.h"

namespace tessera::comm::nccl {

// A connection to the run's store of its own, so that nobody waits for whoever waits in the run's. Any thread; its
// calls take a few seconds at most.
class StoreConnection {
 public:
  explicit StoreConnection(c10d::Store& store);

  bool has(const std::string& key);
  std::string get(const std::string& key);
  void set(const std::string& key, const std::string& value);

 private:
  std::mutex mutex_;
  c10::intrusive_ptr<c10d::Store> store_;
};

// What all communicators of a run share.
struct Run {
  const Library library;
  const std::shared_ptr<StoreConnection> store;
  const std::chrono::milliseconds timeout;  // from the start of a collective, after which it is aborted

  Run(Library nccl, std::shared_ptr<StoreConnection> connection, std::chrono::milliseconds at_most);

  // The first failure, after which nothing more starts. Returns that one.
  PeerFailure fail(const PeerFailure& failure);
  void require_well();

 private:
  std::mutex mutex_;
  std::optional<PeerFailure> failure_;
};

class Communicator {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  struct Place {
    std::vector<int> members;  // ranks in the world
    int rank;                  // index in `members`
    at::Device device;
    std::string key;  // in the store; the same on every member, and no other communicator's
  };

  // What launches a collective. Called by the communicator's thread, on its stream.
  class Calls;
  using Launch = std::function<void(Calls&)>;

  Communicator(std::shared_ptr<Run> run, Place place);

  // Gives what is in flight two seconds to end, as peers may still be at it, then aborts.
  ~Communicator();

  const at::Device& device() const;

  // `launch` holds the collective's tensors. Throws the failure of before.
  Exchange::PendingPtr start(Launch launch);

 private:
  struct Operation;
  class Pending;
  class State;
  std::shared_ptr<State> state_;
};

class Communicator::Calls {
 public:
  // `call` is given the library, the communicator and the stream's handle, and returns what NCCL returned. Returns once
  // NCCL has done what it was asked to, on the host. Throws PeerFailure.
  template <class Call>
  void call(const char* function, const Call& call_nccl) {
    begin(function);
    end(call_nccl(library_, comm_, stream_));
  }

  // NCCL takes the calls that `calls` makes through in_group() for one operation.
  template <class Body>
  void group(const Body& body) {
    call("ncclGroupStart", [](const Library& nccl, CommHandle, void*) { return nccl.group_start(); });
    body();
    call("ncclGroupEnd", [](const Library& nccl, CommHandle, void*) { return nccl.group_end(); });
  }
  template <class Call>
  void in_group(const char* function, const Call& call_nccl) {
    begin(function);
    end_in_group(call_nccl(library_, comm_, stream_));
  }

 private:
  friend class State;
  Calls(State& state, const Library& library, CommHandle comm, void* stream, TimePoint deadline)
      : state_(state), library_(library), comm_(comm), stream_(stream), deadline_(deadline) {}
  void begin(const char* function);
  void end(Result result);
  void end_in_group(Result result);

  State& state_;
  const Library& library_;
  CommHandle comm_;
  void* stream_;
  TimePoint deadline_;
  const char* function_ = "";
  std::unique_lock<std::timed_mutex> lock_;
};

}  // namespace tessera::comm::nccl
