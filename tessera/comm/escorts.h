// Threads that see multi-step operations through to their end, whether or not anyone waits for them. Each operation in
// flight has one to itself, so that ranks may come to the steps of different operations in different orders without
// waiting for each other in a circle; idle ones are kept for the next.
#pragma once

#include <functional>
#include <memory>

#include "tessera/comm/exchange.h"

namespace tessera::comm {

class Escorts {
 public:
  Escorts();
  ~Escorts();  // does not wait: what is still under way ends by itself, at its own timeout at the latest
  Escorts(const Escorts&) = delete;
  Escorts& operator=(const Escorts&) = delete;

  // Runs `operation`, whose every wait has a deadline. The result's wait() returns when it has ended, or throws what it
  // threw; that deadline ends nothing.
  Exchange::PendingPtr lead(std::function<void()> operation);

 private:
  struct Work;
  std::shared_ptr<Work> work_;
};

}  // namespace tessera::comm
