// Which of a run's ranks NCCL connects. A rank says where its device is, on which host and which one there, in the
// store, when its first tensor on a device comes; nobody needs it before. Where a member has no NCCL, all of them are
// without; the first of them says why, once a run. Two members with the same device, which NCCL refuses, are an error.
//
// TESSERA_NCCL_LIBRARY names the library (library.h). Where it is not set, NCCL is torch's own group, if the program
// has one (torch_library.h), and else not used, which rank 0 of a run on CUDA devices says once.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "tessera/comm/exchange.h"

namespace tessera::comm::nccl {

struct Run;
class StoreConnection;

class DeviceLinks {
 public:
  struct Options {
    int rank;                           // in the world
    std::chrono::milliseconds timeout;  // for others to say where their devices are, and of each collective
    bool sums_in_rank_order = false;    // nccl_exchange.h
    c10::intrusive_ptr<c10d::Backend> group_of_torch = {};  // of the same ranks; null: torch has none
  };

  DeviceLinks(c10::intrusive_ptr<c10d::Store> store, Options options);

  // The exchange of these ranks of the world, for tensors on `device`; null on all of them where they have none. Waits
  // for the members' first tensors on devices. Throws PeerFailure: which member had none in time; kUsage on all of
  // them: which two have the same device.
  std::unique_ptr<Exchange> exchange_of(const std::vector<int>& members, at::Device device,
                                        const std::shared_ptr<std::atomic<int64_t>>& bytes_sent);

  // Throws the failure that NCCL has met, of whichever of its collectives.
  void require_well();

 private:
  bool takes_torchs() const;
  void say_where(at::Device device);
  std::string refusal_of(const std::vector<int>& members);

  const c10::intrusive_ptr<c10d::Store> store_;
  const Options options_;
  std::mutex mutex_;
  std::shared_ptr<StoreConnection> connection_;  // from the first tensor on a device on
  std::shared_ptr<Run> run_;                     // null: not on this rank, own_refusal_ says why
  std::string own_refusal_;
  bool has_warned_ = false;
};

}  // namespace tessera::comm::nccl
