// What the channels of a communicator share. Apart from communicator.h, so that its many readers need not parse c10d.
#pragma once

#include <chrono>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "tessera/comm/communicator.h"
#include "tessera/comm/wait_board.h"

namespace tessera::comm {

struct Communicator::Connection {
  c10::intrusive_ptr<c10d::Backend> backend;
  c10::intrusive_ptr<c10d::Store> store;
  std::chrono::milliseconds timeout;  // of each wait
  WaitBoard board;
  int64_t bytes_sent = 0;
};

// A connection to the store that only one channel uses.
struct Communicator::OwnStore {
  c10::intrusive_ptr<c10d::Store> store;
};

}  // namespace tessera::comm
