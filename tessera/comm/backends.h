// The ways in which the ranks of a run can exchange tensors, set up over a store that all of them share.
#pragma once

#include <chrono>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "tessera/base/registry.h"
#include "tessera/comm/exchange.h"
#include "tessera/comm/rendezvous.h"

namespace tessera::comm {

struct BackendInput {
  c10::intrusive_ptr<c10d::Store> store;
  const World& world;
  std::chrono::milliseconds timeout;  // for connecting
};

using MakeExchange = std::unique_ptr<Exchange> (*)(const BackendInput&);

Registry<MakeExchange> backends();

// "auto" is shm within each host and gloo between hosts, where all hosts have equally many ranks and can share memory;
// else gloo. Collective.
std::unique_ptr<Exchange> make_exchange(const std::string& backend, const BackendInput& input);

std::unique_ptr<Exchange> make_gloo_exchange(const BackendInput& input);
std::unique_ptr<Exchange> make_mpi_exchange(const BackendInput& input);
std::unique_ptr<Exchange> make_shm_exchange(const BackendInput& input);

}  // namespace tessera::comm
