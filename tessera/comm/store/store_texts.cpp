#include "tessera/comm/store/store_texts.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/log.h"
#include "tessera/comm/hang_report.h"

namespace tessera::comm {

using std::chrono::milliseconds;

namespace {

// A store refuses empty values in places.
constexpr char kMark = '=';
constexpr char kGivenUp = '!';  // in place of a missing rank's text: why rank 0 waits no longer

constexpr std::chrono::seconds kOthersRead{2};
constexpr std::chrono::seconds kUntilSaid{10};

std::string key_of(const std::string& name, int rank) { return fmt::format("{}/{}", name, rank); }

std::vector<std::string> read(c10d::Store& store, const Keys& keys) {
  std::vector<std::string> texts;
  const auto add = [&](const std::vector<uint8_t>& value) {
    if (value.empty()) {
      throw Error(ErrorKind::kPeer, {"another rank wrote nothing where its text belongs", keys[texts.size()],
                                     "check that no other program uses this run's store"});
    }
    texts.emplace_back(value.begin() + 1, value.end());
    if (value.front() == kGivenUp) {
      throw Error(ErrorKind::kPeer,
                  {texts.back(), "as rank 0 found", "look at the output of the ranks that are missing"});
    }
  };
  if (store.hasExtendedApi()) {
    for (const auto& value : store.multiGet(keys)) add(value);
  } else {
    for (const std::string& key : keys) add(store.get(key));
  }
  return texts;
}

std::string mark_of_readers(const std::string& name) { return name + "/read"; }

void leave_last(c10d::Store& store, const std::string& name, int rank, int size) {
  constexpr milliseconds kMoment{2000};
  Keys others = keys_of_all(mark_of_readers(name), size);
  if (rank != 0) return store.set(others[rank], "1");
  others.erase(others.begin());
  try {
    store.wait(others, kMoment);
  } catch (const std::exception&) {  // see the header
  }
}

void delete_own_keys(c10d::Store& store, const std::string& name, int rank) {
  store.deleteKey(key_of(name, rank));
  if (rank != 0) store.deleteKey(key_of(mark_of_readers(name), rank));
}

}  // namespace

Keys keys_of_all(const std::string& name, int size) {
  Keys keys;
  for (int rank = 0; rank < size; ++rank) keys.push_back(key_of(name, rank));
  return keys;
}

std::vector<std::string> exchange_texts(c10d::Store& store, const std::string& name, int rank, int size,
                                        const std::string& text, const std::function<void(const Keys&)>& wait,
                                        const std::string& before) {
  const Keys keys = keys_of_all(name, size);
  store.set(keys[rank], fmt::format("{}{}", kMark, text));
  wait(keys);
  std::vector<std::string> texts = read(store, keys);
  if (!before.empty()) delete_own_keys(store, before, rank);
  leave_last(store, name, rank, size);
  return texts;
}

std::optional<std::vector<int>> missing_ranks(c10d::Store& store, const Keys& keys) {
  std::vector<int> missing;
  try {
    for (size_t rank = 0; rank < keys.size(); ++rank) {
      if (!store.check({keys[rank]})) missing.push_back(static_cast<int>(rank));
    }
  } catch (const Error&) {
    throw;
  } catch (const std::exception&) {
    return std::nullopt;
  }
  return missing;
}

namespace {

// "ranks 1, 3 did not join the run within 3 s; ranks 0, 2 did"
std::string missing_in_words(const std::vector<int>& missing, const StartStep& step, int size, milliseconds timeout) {
  std::vector<int> there;
  for (int rank = 0; rank < size; ++rank) {
    if (std::find(missing.begin(), missing.end(), rank) == missing.end()) there.push_back(rank);
  }
  return fmt::format("{} {} within {} s; {} did", ranks_in_words(missing), step.missed,
                     std::chrono::duration_cast<std::chrono::seconds>(timeout).count(), ranks_in_words(there));
}

// Rank 0 says after a while for whom all wait.
void wait_for_texts(c10d::Store& store, const StartStep& step, int rank, const Keys& keys, milliseconds timeout) {
  if (rank != 0 || timeout <= kUntilSaid) return store.wait(keys, timeout);
  try {
    return store.wait(keys, kUntilSaid);
  } catch (const Error&) {
    throw;
  } catch (const std::exception&) {
    const auto missing = missing_ranks(store, keys);
    if (!missing) throw;
    if (!missing->empty()) {
      log_warning("{} {} yet ({}); waiting for another {}", ranks_in_words(*missing), step.missed, step.where,
                  format_duration(timeout - kUntilSaid));
    }
  }
  store.wait(keys, timeout - kUntilSaid);
}

// By rank 0, with which the store ends: those that came find the reason where they wait for the text of a rank that did
// not, and have a moment to read it.
void tell_who_waits(c10d::Store& store, const Keys& keys, const std::vector<int>& missing, const std::string& text) {
  try {
    for (const int rank : missing) store.set(keys[static_cast<size_t>(rank)], fmt::format("{}{}", kGivenUp, text));
    std::this_thread::sleep_for(kOthersRead);
  } catch (const std::exception&) {  // whoever is left finds out alone
  }
}

}  // namespace

std::vector<std::string> exchange_texts_at_start(c10d::Store& store, const StartStep& step, int rank, int size,
                                                 const std::string& text, milliseconds timeout) {
  try {
    return exchange_texts(store, step.name, rank, size, text,
                          [&](const Keys& keys) { wait_for_texts(store, step, rank, keys, timeout); });
  } catch (const Error&) {
    throw;
  } catch (const std::exception&) {
    const Keys keys = keys_of_all(step.name, size);
    const auto missing = missing_ranks(store, keys);
    if (!missing) {
      throw Error(ErrorKind::kPeer, {"the run's store is gone: rank 0, or the launcher that serves it, has ended",
                                     step.where, "look at the end of that process's output"});
    }
    // The last of them came just now, or rank 0 has said meanwhile why it waits no longer, which this throws.
    if (missing->empty()) return read(store, keys);
    const std::string reason = missing_in_words(*missing, step, size, timeout);
    if (rank == 0) tell_who_waits(store, keys, *missing, reason);
    throw Error(ErrorKind::kPeer, {reason, step.where,
                                   "look at that rank's output, and check that WORLD_SIZE is the number of processes "
                                   "started"});
  }
}

}  // namespace tessera::comm
