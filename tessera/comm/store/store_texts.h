// What ranks tell each other through a store: a text each, under a name.
#pragma once

#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

namespace tessera::comm {

using Keys = std::vector<std::string>;  // of each rank, in rank order

Keys keys_of_all(const std::string& name, int size);

// Sets this rank's text and returns everybody's. `wait` returns once all keys are there, or throws. Rank 0, with which
// the store may end, returns when the others have read, or after a moment: whoever is gone is missed by name where it
// is needed next. Texts stay in the store.
std::vector<std::string> exchange_texts(c10d::Store& store, const std::string& name, int rank, int size,
                                        const std::string& text, const std::function<void(const Keys&)>& wait);

}  // namespace tessera::comm
