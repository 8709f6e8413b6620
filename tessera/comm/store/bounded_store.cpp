#include "tessera/comm/store/bounded_store.h"

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "tessera/base/format.h"

namespace tessera::comm {

using std::chrono::milliseconds;
using Bytes = std::vector<uint8_t>;

BoundedStore::BoundedStore(c10::intrusive_ptr<c10d::Store> inner, std::string place, milliseconds timeout)
    : c10d::Store(timeout), inner_(std::move(inner)), place_(std::move(place)) {}

template <class Call>
auto BoundedStore::within(milliseconds at_most, Call call) {
  using Result = std::invoke_result_t<Call, c10d::Store&>;
  constexpr bool kNothing = std::is_void_v<Result>;
  const auto result = std::make_shared<std::optional<std::conditional_t<kNothing, bool, Result>>>();
  const bool returned = thread_.run(
      [inner = inner_, call = std::move(call), result] {
        if constexpr (kNothing) {
          call(*inner);
        } else {
          *result = call(*inner);
        }
      },
      at_most);
  if (!returned) {
    throw SilentStore(ErrorKind::kPeer,
                      {fmt::format("the run's store, which rank 0 or its launcher serves, does not answer ({})",
                                   format_duration(at_most)),
                       place_, "look whether that process is stopped and its host can be reached"});
  }
  if constexpr (!kNothing) return std::move(**result);
}

c10::intrusive_ptr<c10d::Store> BoundedStore::clone() {
  auto inner = within(timeout_, [](c10d::Store& store) { return store.clone(); });
  return c10::make_intrusive<BoundedStore>(std::move(inner), place_, timeout_);
}

void BoundedStore::set(const std::string& key, const Bytes& value) {
  within(timeout_, [=](c10d::Store& store) { store.set(key, value); });
}

Bytes BoundedStore::compareSet(const std::string& key, const Bytes& current, const Bytes& wanted) {
  return within(timeout_, [=](c10d::Store& store) { return store.compareSet(key, current, wanted); });
}

Bytes BoundedStore::get(const std::string& key) {
  return within(timeout_, [=](c10d::Store& store) { return store.get(key); });
}

int64_t BoundedStore::add(const std::string& key, int64_t value) {
  return within(timeout_, [=](c10d::Store& store) { return store.add(key, value); });
}

bool BoundedStore::deleteKey(const std::string& key) {
  return within(timeout_, [=](c10d::Store& store) { return store.deleteKey(key); });
}

bool BoundedStore::check(const std::vector<std::string>& keys) {
  return within(timeout_, [=](c10d::Store& store) { return store.check(keys); });
}

int64_t BoundedStore::getNumKeys() {
  return within(timeout_, [](c10d::Store& store) { return store.getNumKeys(); });
}

void BoundedStore::wait(const std::vector<std::string>& keys) { wait(keys, timeout_); }

void BoundedStore::wait(const std::vector<std::string>& keys, const milliseconds& timeout) {
  within(timeout + kAnswerTakes, [=](c10d::Store& store) { store.wait(keys, timeout); });
}

void BoundedStore::append(const std::string& key, const Bytes& value) {
  within(timeout_, [=](c10d::Store& store) { store.append(key, value); });
}

std::vector<Bytes> BoundedStore::multiGet(const std::vector<std::string>& keys) {
  return within(timeout_, [=](c10d::Store& store) { return store.multiGet(keys); });
}

void BoundedStore::multiSet(const std::vector<std::string>& keys, const std::vector<Bytes>& values) {
  within(timeout_, [=](c10d::Store& store) { store.multiSet(keys, values); });
}

bool BoundedStore::hasExtendedApi() const { return inner_->hasExtendedApi(); }

}  // namespace tessera::comm
