// What the groups of a run share. Apart from group.h, so that its many readers need not parse c10d.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/comm/group.h"
#include "tessera/comm/rendezvous.h"
#include "tessera/comm/wait_board.h"

namespace tessera::comm {

// The first error of a collective. After it ranks are out of step: what was started then is not waited for either.
class FirstFailure {
 public:
  [[noreturn]] void raise(const Error& failure) {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = failure;
    throw *failure_;
  }

  std::optional<Error> get() const {
    const std::lock_guard lock(mutex_);
    return failure_;
  }

 private:
  mutable std::mutex mutex_;
  std::optional<Error> failure_;
};

// Of a group and its channels.
struct Group::Count {
  std::string name;
  std::weak_ptr<Exchange> exchange;
  std::atomic<int64_t> waited_ns = 0;
};

struct Group::Connection {
  c10::intrusive_ptr<c10d::Store> store;
  std::chrono::milliseconds timeout;  // of each wait
  WaitBoard board;
  FirstFailure failure = {};

  std::shared_ptr<Count> new_count(const std::string& name, const std::shared_ptr<Exchange>& exchange);
  std::vector<GroupUse> uses();

  std::mutex counts_mutex = {};
  std::vector<std::weak_ptr<Count>> counts = {};
};

// Joins the run over a store that others use as well (torch.distributed's). Collective. `name`, the same on every rank,
// keeps groups on one store apart. `group_of_torch`: torch's own of NCCL over the same ranks, where the program has
// one; devices are connected by it (nccl/torch_library.h). Errors: see init_distributed.
std::shared_ptr<Group> connect(const World& world, c10::intrusive_ptr<c10d::Store> store, const std::string& name,
                               const InitOptions& options = {}, c10::intrusive_ptr<c10d::Backend> group_of_torch = {});

// The store of a run whose rank 0 is at world.master_addr: this rank's connection to it, and on rank 0 the store
// itself. Every call to it ends. Errors: see init_distributed.
c10::intrusive_ptr<c10d::Store> open_store(const World& world, std::chrono::milliseconds timeout);

// The same, for torch.distributed's own group, which would wait in silence: once all ranks are there. `timeout`: of the
// store's waits; ranks meet within TESSERA_TIMEOUT, where that is set and shorter. Collective. Errors: see
// init_distributed.
c10::intrusive_ptr<c10d::Store> open_store_for_torch(const World& world, std::chrono::milliseconds timeout);

// A connection to the store that only one channel uses.
struct Group::OwnStore {
  c10::intrusive_ptr<c10d::Store> store;
};

}  // namespace tessera::comm
