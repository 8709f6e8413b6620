// How the collectives of a group reach the other ranks. One implementation a kind of connection:
// MessageExchange sends messages over any c10d::Backend, shm::ShmExchange shares memory within a host,
// TwoLevelExchange is made of both, and nccl::NcclExchange connects devices.
//
// A start function returns at once. Tensors are contiguous, on the CPU (StagedExchange: anywhere), and borrowed until
// wait() of the result returns; whoever gives the result up without waiting leaves them to the exchange, which keeps
// them alive until it needs them no longer. After wait_for_result() what arrives is there, but what this rank sends may
// still be read, so must not be written to, until settle() returns. A tag says which collective this is, with its
// sequence number: what is sent under one tag arrives under the same, in the order in which it was sent. Any thread, as
// long as what is sent under one tag is sent by one.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace tessera::comm {

// Why a collective cannot end: which rank it waits for (its number in the world that was connected, whichever of its
// ranks the exchange is among; -1: none is known), and whether that rank is only late.
class PeerFailure : public std::runtime_error {
 public:
  PeerFailure(int peer, bool late, const std::string& reason) : std::runtime_error(reason), peer_(peer), late_(late) {}
  int peer() const { return peer_; }
  bool late() const { return late_; }

 private:
  int peer_;
  bool late_;
};

class Exchange {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  class Pending {
   public:
    virtual ~Pending() = default;
    virtual void wait(TimePoint deadline) = 0;  // throws PeerFailure
    virtual void wait_for_result(TimePoint deadline) { wait(deadline); }

    // The other end of a collective on a device: what is queued on `stream` from now on finds the result. Not to be
    // called besides wait(). Returns at once, but for a transport of host memory, which waits for the result and queues
    // its copies on the current stream.
    virtual void wait_on(const c10::Stream& /*stream*/, TimePoint deadline) { wait_for_result(deadline); }
  };
  using PendingPtr = std::unique_ptr<Pending>;

  virtual ~Exchange() = default;

  // full (size * shard.numel()) = every rank's shard in rank order; `shard` may be its own part of `full`.
  virtual PendingPtr all_gather(const at::Tensor& full, const at::Tensor& shard, uint64_t tag) = 0;

  // shard = scale * ordered sum of every rank's part for this rank; `shard` may be its own part of `full`, or of fp32
  // where that is narrower (shm alone). Moves at most `bucket_numel` elements of `full` at once where what arrives
  // needs memory.
  virtual PendingPtr reduce_scatter(const at::Tensor& shard, const at::Tensor& full, double scale, uint64_t tag,
                                    int64_t bucket_numel) = 0;

  // buffer = scale * sum of every rank's, for an exchange that does it in one; else it is made of others.
  virtual bool all_reduces(const at::Tensor& /*buffer*/) { return false; }
  virtual PendingPtr all_reduce(const at::Tensor& buffer, double scale, uint64_t tag);

  // incoming[r] = rank r's outgoing[this rank]; empty ones are not sent. The rank's own is not touched.
  virtual PendingPtr all_to_all(const std::vector<at::Tensor>& incoming, const std::vector<at::Tensor>& outgoing,
                                uint64_t tag) = 0;

  virtual PendingPtr broadcast(const at::Tensor& buffer, int root, uint64_t tag) = 0;
  virtual PendingPtr send(const at::Tensor& buffer, int to, uint64_t tag) = 0;
  virtual PendingPtr receive(const at::Tensor& buffer, int from, uint64_t tag) = 0;

  // Whether tensors on that device travel from device to device. Every rank asks.
  virtual bool connects(c10::Device /*device*/) { return false; }

  // Waits until peers have read what collectives sent whose results are there. Throws PeerFailure, also that of a
  // collective for which only a stream has waited.
  virtual void settle(TimePoint /*deadline*/) {}

  // Of these ranks alone, this one among them, numbered in the order given: over the same connections, which both keep
  // open. Tags must differ from those of other exchanges over them.
  virtual std::unique_ptr<Exchange> among(const std::vector<int>& ranks) const = 0;

  // For collectives that each rank may begin between those of this exchange in an order of its own; counts its bytes
  // with this one's. Null: this serves, as tags tell them apart.
  virtual std::unique_ptr<Exchange> channel() const { return nullptr; }

  // Flat and uninitialized, in memory from which collectives are fastest. Outlives the exchange.
  virtual at::Tensor empty(int64_t numel, const at::TensorOptions& options);

  // How an all-reduce is made: a reduce-scatter and an all-gather where the elements can be dealt out evenly and are
  // worth two rounds, else everything to everybody.
  static bool reduces_in_shards(int64_t numel, int size) {
    constexpr int64_t kSmallNumel = 8192;
    return numel > kSmallNumel && numel % size == 0;
  }

  // Bytes of tensors that this rank has sent to others.
  virtual int64_t bytes_sent() const { return bytes_sent_; }

 protected:
  std::atomic<int64_t> bytes_sent_ = 0;
};

}  // namespace tessera::comm
