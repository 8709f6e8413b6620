#include "tessera/storage/host_link.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>
#include <exception>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/comm/current_stream.h"

namespace tessera::storage {

struct HostLink::Copy::Copying {
  HostLink& link;
  at::Tensor to, from;
  c10::Event done;
  TraceEvent shown;
};

void HostLink::Copy::finish() {
  const auto copying = std::exchange(copying_, nullptr);
  if (!copying) return;
  copying->done.synchronize();
  copying->link.let_go_of_ended();
}

void HostLink::Copy::wait_on(const c10::Stream& stream) {
  if (const auto copying = std::exchange(copying_, nullptr)) copying->done.block(stream);
}

HostLink::HostLink(c10::Device device, std::shared_ptr<PinnedMemory> memory)
    : device_(device),
      memory_(std::move(memory)),
      to_host_(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device)),
      to_device_(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device)) {}

HostLink::~HostLink() {
  for (const auto& copying : in_flight_) {
    try {
      copying->done.synchronize();
    } catch (const std::exception&) {  // the device has failed: there is nothing left to wait for
    }
  }
}

HostLink::Copy HostLink::start_to_host(const at::Tensor& host, const at::Tensor& there, const std::string& label) {
  return start(to_host_, TraceLane::kToHost, host, there, label);
}

HostLink::Copy HostLink::start_to_device(const at::Tensor& there, const at::Tensor& host, const std::string& label) {
  return start(to_device_, TraceLane::kToDevice, there, host, label);
}

HostLink::Copy HostLink::start(const c10::Stream& lane, TraceLane shown, const at::Tensor& to, const at::Tensor& from,
                               const std::string& label) {
  TESSERA_INVARIANT(to.scalar_type() == from.scalar_type() && to.is_contiguous() && from.is_contiguous());
  const at::NoGradGuard no_grad;
  let_go_of_ended();
  const std::lock_guard lock(mutex_);
  auto copying = std::make_shared<Copy::Copying>(Copy::Copying{
      .link = *this,
      .to = to,
      .from = from,
      .done = c10::Event(device_.type()),
      .shown = {shown, "copy of " + label, std::chrono::steady_clock::now(), {}, static_cast<int64_t>(from.nbytes())}});
  c10::Event ready(device_.type());
  ready.record(comm::current_stream(device_));
  ready.block(lane);
  {
    const c10::StreamGuard on_lane(lane);
    copying->to.copy_(from, /*non_blocking=*/true);
  }
  copying->done.record(lane);
  in_flight_.push_back(copying);
  return Copy(std::move(copying));
}

void HostLink::let_go_of_ended() {
  const std::lock_guard lock(mutex_);
  for (auto copying = in_flight_.begin(); copying != in_flight_.end();) {
    if (!(*copying)->done.query()) {
      ++copying;
      continue;
    }
    TraceEvent& shown = (*copying)->shown;
    shown.end = std::chrono::steady_clock::now();
    if (tracing()) trace(std::move(shown));
    copying = in_flight_.erase(copying);
  }
}

StagingBuffers::Buffer& StagingBuffers::next(int64_t numel, at::ScalarType dtype) {
  Slot& slot = slots_[next_++ % slots_.size()];
  slot.given.copy.finish();
  const int64_t bytes = numel * static_cast<int64_t>(c10::elementSize(dtype));
  if (!slot.bytes.defined() || slot.bytes.numel() < bytes) {
    slot.bytes.reset();
    slot.given.values.reset();
    slot.bytes = link_->memory().empty(bytes, at::kByte);
  }
  slot.given.values = slot.bytes.narrow(0, 0, bytes).view(dtype);
  return slot.given;
}

}  // namespace tessera::storage
