// Copies between the host's memory and a device's, beside what the device computes: one stream for each direction, so
// both may be under way at a time.
//
// A copy begins after what the current stream has been given so far, and does not hold up what it is given next:
// finish() lets the host wait for it, wait_on() a stream. Its tensors are held until it has ended, so nothing that it
// reads or writes is given to anybody else; the host must not touch its side until finish(). In pinned memory
// (pinned_memory.h); copies of other memory hold up the host, too. Any thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <array>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "tessera/base/trace.h"
#include "tessera/storage/pinned_memory.h"

namespace tessera::storage {

class HostLink {
 public:
  // `memory`: for whoever needs some to copy from or to.
  HostLink(c10::Device device, std::shared_ptr<PinnedMemory> memory);
  ~HostLink();

  // One copy, until somebody has waited for it. A handle: copies mean the same one.
  class Copy {
   public:
    Copy() = default;
    bool in_flight() const { return copying_ != nullptr; }
    void finish();
    void wait_on(const c10::Stream& stream);

   private:
    friend class HostLink;
    struct Copying;
    explicit Copy(std::shared_ptr<Copying> copying) : copying_(std::move(copying)) {}
    std::shared_ptr<Copying> copying_;
  };

  // Of one dtype and numel, contiguous. `label`: what it is, for timelines.
  Copy start_to_host(const at::Tensor& host, const at::Tensor& there, const std::string& label);
  Copy start_to_device(const at::Tensor& there, const at::Tensor& host, const std::string& label);

  // On which copies to the device run: what a thread queues there comes after them.
  const c10::Stream& to_device() const { return to_device_; }

  PinnedMemory& memory() const { return *memory_; }

 private:
  Copy start(const c10::Stream& lane, TraceLane shown, const at::Tensor& to, const at::Tensor& from,
             const std::string& label);
  void let_go_of_ended();

  const c10::Device device_;
  const std::shared_ptr<PinnedMemory> memory_;
  const c10::Stream to_host_, to_device_;
  std::mutex mutex_;
  std::deque<std::shared_ptr<Copy::Copying>> in_flight_;
};

// Two buffers of pinned memory in turn: one is filled while the other is copied. They grow as needed. One thread.
class StagingBuffers {
 public:
  explicit StagingBuffers(std::shared_ptr<HostLink> link) : link_(std::move(link)) {}

  static constexpr size_t kCount = 2;

  struct Buffer {
    at::Tensor values;         // flat
    HostLink::Copy copy = {};  // that used it last
  };

  // Waits until the copy that used it last has ended.
  Buffer& next(int64_t numel, at::ScalarType dtype);

  HostLink& link() const { return *link_; }

 private:
  struct Slot {
    at::Tensor bytes;
    Buffer given = {};
  };
  std::shared_ptr<HostLink> link_;
  std::array<Slot, kCount> slots_;
  size_t next_ = 0;
};

}  // namespace tessera::storage
