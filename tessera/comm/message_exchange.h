// Collectives out of messages between two ranks each, over a c10d::Backend that has send and recv with tags. They are
// matched by tag, so that ranks which run different collectives never get each other's bytes, and collectives of two
// channels may overtake each other.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "tessera/comm/exchange.h"

namespace tessera::comm {

std::unique_ptr<Exchange> make_message_exchange(c10::intrusive_ptr<c10d::Backend> backend);

}  // namespace tessera::comm
