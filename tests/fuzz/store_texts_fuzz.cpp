#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "tessera/comm/store/store_texts.h"
#include "tests/fuzz/target.h"

namespace tessera::fuzz::store_texts_fuzz {

TESSERA_FUZZ_TARGET(store_texts) {
  // What a peer wrote into the store, where this rank expects its text.
  c10d::HashStore store;
  store.set(comm::keys_of_all("x", 2)[1], std::vector<uint8_t>(bytes.begin(), bytes.end()));
  store.set(comm::keys_of_all("x/read", 2)[1], std::vector<uint8_t>{1});
  comm::exchange_texts(store, "x", 0, 2, "text", [](const comm::Keys&) {});
}

}  // namespace tessera::fuzz::store_texts_fuzz
