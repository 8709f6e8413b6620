// The run's store: what rank 0 serves (store_server.h), and each rank's connection to it. Every call ends.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "tessera/base/unique_fd.h"
#include "tessera/comm/store/bounded_store.h"
#include "tessera/comm/store/store_messages.h"
#include "tessera/comm/store/tcp_connection.h"

namespace tessera::comm {

class StoreServer;

// Where a run's store is, and how a rank gets in.
struct StorePlace {
  std::string host;  // a name or an address
  int port = 0;
  std::string secret;  // run_secret.h
  int rank = 0;        // who asks, for errors

  std::string text() const;  // "10.0.0.1:29500"
};

// A call that has no answer after getTimeout(), or a moment after a wait's own time, throws SilentStore, and so does
// every call after it; where the store is gone c10::DistNetworkError; a wait that is over c10::DistStoreError. Safe to
// use from several threads, which wait for each other; a clone is independent.
class RunStore final : public c10d::Store {
 public:
  // Tries again for as long as `timeout` where nobody listens yet. Errors: kPeer, nobody answers there, or something
  // else than a run's store; kUsage, the two ends do not have the same secret. `server`: kept for as long as this is.
  RunStore(StorePlace place, std::chrono::milliseconds timeout, std::shared_ptr<StoreServer> server = nullptr);

  const StorePlace& place() const { return place_; }

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
  bool hasExtendedApi() const override { return true; }

 private:
  void connect(Deadline deadline);
  bool shake_hands(Deadline deadline);
  SilentStore fall_silent(std::chrono::milliseconds after) const;
  StoreMessage ask(const StoreMessage& request, std::chrono::milliseconds at_most);
  StoreMessage await_keys(const char* what, const std::vector<std::string>& keys, std::chrono::milliseconds at_most);

  StorePlace place_;
  std::shared_ptr<StoreServer> server_;
  UniqueFd socket_;
  std::string input_;
  bool silent_ = false;
  std::timed_mutex one_at_a_time_;
};

}  // namespace tessera::comm
