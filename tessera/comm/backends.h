// The data planes that a run can use: a c10d::Backend each, made over a store that all ranks share.
#pragma once

#include <chrono>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "tessera/base/registry.h"
#include "tessera/comm/rendezvous.h"

namespace tessera::comm {

struct BackendInput {
  c10::intrusive_ptr<c10d::Store> store;
  const World& world;
  std::chrono::milliseconds timeout;  // for connecting
};

using MakeBackend = c10::intrusive_ptr<c10d::Backend> (*)(const BackendInput&);

Registry<MakeBackend> backends();

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const BackendInput& input);

}  // namespace tessera::comm
