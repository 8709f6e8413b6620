// What the groups of a run share. Apart from group.h, so that its many readers need not parse c10d.
#pragma once

#include <chrono>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "tessera/comm/group.h"
#include "tessera/comm/rendezvous.h"
#include "tessera/comm/wait_board.h"

namespace tessera::comm {

struct Group::Connection {
  c10::intrusive_ptr<c10d::Store> store;
  std::chrono::milliseconds timeout;  // of each wait
  WaitBoard board;
};

// Joins the run over a store that others use as well (torch.distributed's). Collective. `name`, the same on every rank,
// keeps groups on one store apart. Errors: see init_distributed.
std::shared_ptr<Group> connect(const World& world, c10::intrusive_ptr<c10d::Store> store, const std::string& name,
                               const InitOptions& options = {});

// The store of a run whose rank 0 is at world.master_addr: this rank's connection to it, and on rank 0 the store
// itself. Every call to it ends. Errors: see init_distributed.
c10::intrusive_ptr<c10d::Store> open_store(const World& world, std::chrono::milliseconds timeout);

// A connection to the store that only one channel uses.
struct Group::OwnStore {
  c10::intrusive_ptr<c10d::Store> store;
};

}  // namespace tessera::comm
