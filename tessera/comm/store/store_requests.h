// What a rank's request does to the values of the run's store (store_messages.h).
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "tessera/comm/store/store_messages.h"

namespace tessera::comm {

// The answer to any request but "wait" and "read", from `values`, a store in memory. Throws on a malformed request.
StoreMessage answer_of(const StoreMessage& request, c10d::Store& values);

// The answer to "read"; all of the keys are there.
StoreMessage read_from(c10d::Store& values, const std::vector<std::string>& keys);

}  // namespace tessera::comm
