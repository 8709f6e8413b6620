#include <exception>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "tessera/comm/store/store_messages.h"
#include "tessera/comm/store/store_requests.h"
#include "tests/fuzz/target.h"

namespace tessera::fuzz::store_messages_fuzz {

TESSERA_FUZZ_TARGET(store_messages) {
  // What comes over a connection to the run's store from somebody who has the run's secret.
  c10d::HashStore values;
  std::string input(bytes);
  while (auto request = comm::take_frame(input)) {
    try {
      comm::answer_of(*request, values);
    } catch (const std::exception&) {  // for the server any is a refusal (store_server.cpp)
      return;
    }
  }
}

}  // namespace tessera::fuzz::store_messages_fuzz
