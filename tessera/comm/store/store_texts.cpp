#include "tessera/comm/store/store_texts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tessera/base/error.h"

namespace tessera::comm {

using std::chrono::milliseconds;

namespace {

// A store refuses empty values in places.
constexpr std::string_view kMark = "=";

std::string key_of(const std::string& name, int rank) { return fmt::format("{}/{}", name, rank); }

std::vector<std::string> read(c10d::Store& store, const Keys& keys) {
  std::vector<std::string> texts;
  const auto add = [&](const std::vector<uint8_t>& value) {
    if (value.size() < kMark.size()) {
      throw Error(ErrorKind::kPeer, {"another rank wrote nothing where its text belongs", keys[texts.size()],
                                     "check that no other program uses this run's store"});
    }
    texts.emplace_back(value.begin() + kMark.size(), value.end());
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

std::vector<std::string> exchange_texts_at_start(c10d::Store& store, const StartStep& step, int rank, int size,
                                                 const std::string& text, milliseconds timeout) {
  try {
    return exchange_texts(store, step.name, rank, size, text, [&](const Keys& keys) { store.wait(keys, timeout); });
  } catch (const Error&) {
    throw;
  } catch (const std::exception&) {
    const auto missing = missing_ranks(store, keys_of_all(step.name, size));
    if (!missing) {
      throw Error(ErrorKind::kPeer, {"the run's store is gone: rank 0, or the launcher that serves it, has ended",
                                     step.where, "look at the end of that process's output"});
    }
    const std::string who = missing->empty() ? "a rank" : fmt::format("rank {}", fmt::join(*missing, ", rank "));
    throw Error(ErrorKind::kPeer, {fmt::format("{} {} within {} s", who, step.missed,
                                               std::chrono::duration_cast<std::chrono::seconds>(timeout).count()),
                                   step.where,
                                   "look at that rank's output, and check that WORLD_SIZE is the number of processes "
                                   "started"});
  }
}

}  // namespace tessera::comm
