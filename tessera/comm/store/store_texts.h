// What ranks tell each other through a store: a text each, under a name.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

namespace tessera::comm {

using Keys = std::vector<std::string>;  // of each rank, in rank order

Keys keys_of_all(const std::string& name, int size);

// The ranks whose key is not there. Nothing where the store does not tell it, because it is gone.
std::optional<std::vector<int>> missing_ranks(c10d::Store& store, const Keys& keys);

// Sets this rank's text and returns everybody's. `wait` returns once all keys are there, or throws. Rank 0, with which
// the store may end, returns when the others have read, or after a moment: whoever is gone is missed by name where it
// is needed next. Texts stay in the store until the exchange after them: `before`, the name of the one that the same
// ranks made before this, or empty. All have left that once all keys of this are there, so its own are deleted.
std::vector<std::string> exchange_texts(c10d::Store& store, const std::string& name, int rank, int size,
                                        const std::string& text, const std::function<void(const Keys&)>& wait,
                                        const std::string& before = "");

// What all ranks do together while they start, before there is a Group.
struct StartStep {
  std::string name;    // of the exchange
  std::string missed;  // of a rank that is not there in time: "did not join the run"
  std::string where;   // of the error
};

// exchange_texts, waiting in the store; after ten seconds rank 0 says who is missing. Errors: kPeer, who came and who
// is missing after `timeout`, or that the store is gone. Where ranks are missing, rank 0 tells those that came, and
// waits two seconds for them to read it.
std::vector<std::string> exchange_texts_at_start(c10d::Store& store, const StartStep& step, int rank, int size,
                                                 const std::string& text, std::chrono::milliseconds timeout);

}  // namespace tessera::comm
