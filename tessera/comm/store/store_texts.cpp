#include "tessera/comm/store/store_texts.h"

#include <fmt/format.h>

#include "tessera/base/error.h"

namespace tessera::comm {
namespace {

// A store refuses empty values in places.
constexpr std::string_view kMark = "=";

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

void leave_last(c10d::Store& store, const std::string& name, int rank, int size) {
  constexpr std::chrono::milliseconds kMoment{2000};
  Keys others = keys_of_all(name + "/read", size);
  if (rank != 0) return store.set(others[rank], "1");
  others.erase(others.begin());
  try {
    store.wait(others, kMoment);
  } catch (const std::exception&) {  // see the header
  }
}

}  // namespace

Keys keys_of_all(const std::string& name, int size) {
  Keys keys;
  for (int rank = 0; rank < size; ++rank) keys.push_back(fmt::format("{}/{}", name, rank));
  return keys;
}

std::vector<std::string> exchange_texts(c10d::Store& store, const std::string& name, int rank, int size,
                                        const std::string& text, const std::function<void(const Keys&)>& wait) {
  const Keys keys = keys_of_all(name, size);
  store.set(keys[rank], fmt::format("{}{}", kMark, text));
  wait(keys);
  std::vector<std::string> texts = read(store, keys);
  leave_last(store, name, rank, size);
  return texts;
}

}  // namespace tessera::comm
