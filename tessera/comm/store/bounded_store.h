// A store whose every call ends. LibTorch's own client waits without a limit for an answer, so a rank 0 that is
// stopped, or a host that vanished, would hold every other rank for ever.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "tessera/base/abandonable_thread.h"
#include "tessera/base/error.h"

namespace tessera::comm {

// The place of a store that a Python program made.
inline constexpr const char* kStoreOfTorch = "the store of torch.distributed";

// How much later than a wait's own time its answer may come.
inline constexpr std::chrono::milliseconds kAnswerTakes{5'000};

// ErrorKind::kPeer: a call had no answer in time.
class SilentStore : public Error {
 public:
  using Error::Error;
};

// Hands each call to `inner`. One that takes longer than getTimeout(), or than a wait's own time and a moment, throws
// SilentStore, and is left behind on a thread of the store's; so is, at once, every call after it. Safe to use from
// several threads, which wait for each other; a clone is independent.
class BoundedStore final : public c10d::Store {
 public:
  // `place`: where the store is, for errors. setTimeout leaves the inner store's own as it is.
  BoundedStore(c10::intrusive_ptr<c10d::Store> inner, std::string place, std::chrono::milliseconds timeout);

  c10::intrusive_ptr<c10d::Store> clone() override;
  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<uint8_t> compareSet(const std::string& key, const std::vector<uint8_t>& current,
                                  const std::vector<uint8_t>& wanted) override;
  std::vector<uint8_t> get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override;
  void append(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<std::vector<uint8_t>> multiGet(const std::vector<std::string>& keys) override;
  void multiSet(const std::vector<std::string>& keys, const std::vector<std::vector<uint8_t>>& values) override;
  bool hasExtendedApi() const override;

 private:
  // `call` gets the inner store, and captures by value.
  template <class Call>
  auto within(std::chrono::milliseconds at_most, Call call);

  c10::intrusive_ptr<c10d::Store> inner_;
  std::string place_;
  AbandonableThread thread_;
};

}  // namespace tessera::comm
