#include "tests/support/far_device.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <pthread.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "tests/support/far_memory.h"
#include "tests/support/far_operators.h"
#include "tests/support/far_stream.h"

namespace tessera::test {
namespace {

constexpr int kRaces = 66;  // the exit code

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  at::DeviceType type() const override { return kFarDevice.type(); }
  at::Device exchangeDevice(at::Device) const override { return kFarDevice; }
  at::Device getDevice() const override { return kFarDevice; }
  void setDevice(at::Device) const override {}
  void uncheckedSetDevice(at::Device) const noexcept override {}
  c10::Stream getStream(at::Device) const override { return stream(current_far_stream()); }
  c10::Stream getDefaultStream(at::Device) const override { return stream(0); }
  c10::Stream getStreamFromGlobalPool(at::Device, bool /*is_high_priority*/) const override {
    return stream(new_far_stream());
  }
  c10::Stream getNewStream(at::Device, int /*priority*/) const override { return stream(new_far_stream()); }
  c10::Stream exchangeStream(c10::Stream next) const override { return stream(exchange_far_stream(next.id())); }
  void* getStreamNativeHandle(const c10::Stream of) const override { return far_stream_handle(of.id()); }
  bool queryStream(const c10::Stream& of) const override { return is_far_stream_idle(of.id()); }
  void synchronizeStream(const c10::Stream& of) const override { drain_far_stream(of.id()); }
  void synchronizeDevice(c10::DeviceIndex) const override { drain_far_streams(); }

  void record(void** event, const c10::Stream& on, c10::DeviceIndex, c10::EventFlag) const override {
    record_far_event(event, on.id());
  }
  void block(void* event, const c10::Stream& waiting) const override { block_on_far_event(event, waiting.id()); }
  bool queryEvent(void* event) const override { return has_far_event_passed(event); }
  void synchronizeEvent(void* event) const override { await_far_event(event); }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override { destroy_far_event(event); }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& used_on) const override {
    keep_for_stream(data.get(), used_on.id());
  }

  c10::DeviceIndex deviceCount() const noexcept override { return 1; }

 private:
  static c10::Stream stream(c10::StreamId id) { return c10::Stream(c10::Stream::UNSAFE, kFarDevice, id); }
};

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    static const at::Generator generator = at::detail::createCPUGenerator();
    return generator;
  }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory(); }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
};

int64_t number_in(const char* variable) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? 0 : std::atoll(text);
}

// While LibTorch is still whole; nothing runs after it.
void end_at_exit() {
  settle_far_streams();
  const FarFacts facts = far_facts();
  for (const std::string& race : facts.races) std::fprintf(stderr, "far device: %s\n", race.c_str());
  if (facts.races.empty()) return;
  std::fflush(stdout);
  _exit(kRaces);
}

void register_far_device() {
  set_near_of([](const void* far_address) { return near_of(far_address); });
  far_memory();
  pthread_atfork([] { settle_far_streams(); }, nullptr,
                 [] {
                   leave_parents_memory();
                   leave_parents_streams();
                 });
  c10::register_privateuse1_backend("far");
  c10::SetAllocator(kFarDevice.type(), &far_memory());
  static const c10::impl::DeviceGuardImplRegistrar guard(kFarDevice.type(), new Guard);
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  register_far_operators();
  set_far_streams_mode(far_mode_of_environment());
  std::atexit(end_at_exit);
}

}  // namespace

at::Device far_device() {
  static const bool once = (register_far_device(), true);
  static_cast<void>(once);
  return kFarDevice;
}

void set_far_mode(const FarMode& mode) {
  settle_far_streams();
  set_far_streams_mode(mode);
}

FarMode far_mode_of_environment() {
  FarMode mode;
  mode.late = std::getenv("TESSERA_FAR_LATE") != nullptr;
  mode.seed = static_cast<uint64_t>(number_in("TESSERA_FAR_LATE"));
  mode.records = number_in("TESSERA_FAR_RECORDS") != 0;
  mode.drop_wait = number_in("TESSERA_FAR_DROP_WAIT");
  mode.drop_record = number_in("TESSERA_FAR_DROP_RECORD");
  return mode;
}

FarFacts far_facts() {
  FarFacts facts = far_stream_facts();
  const FarBytes bytes = far_bytes();
  facts.pinned_bytes = bytes.pinned;
  facts.most_pinned_bytes = bytes.most_pinned;
  facts.pinned_allocations = bytes.pinned_allocations;
  return facts;
}

size_t far_bytes_in_use() { return far_bytes().in_use; }
size_t far_pinned_bytes() { return far_bytes().pinned; }

}  // namespace tessera::test
