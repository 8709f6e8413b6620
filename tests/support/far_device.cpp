#include "tests/support/far_device.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <pthread.h>
#include <sys/mman.h>
#include <torch/library.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "tests/support/far_stream.h"

namespace tessera::test {
namespace {

constexpr auto kFar = c10::DeviceType::PrivateUse1;
const at::Device kDevice(kFar, 0);

// One piece of memory at two addresses: the far one that tensors have, and the near one that operators use.
class Memory final : public c10::Allocator {
 public:
  Memory() {
    map();
    free_[0] = kBytes;
  }

  // In a forked process: what it has so far becomes its own.
  void leave_parent() {
    const size_t used = free_.empty() ? kBytes : std::prev(free_.end())->first;
    std::vector<char> contents(near_, near_ + used);
    map(MAP_FIXED);
    std::copy(contents.begin(), contents.end(), near_);
  }

  bool is_near(const void* address) const { return address >= near_ && address < near_ + kBytes; }
  void* near_of(const void* far) const { return near_ + (static_cast<const char*>(far) - far_); }
  size_t in_use() const { return in_use_; }

  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &c10::detail::deleteNothing, kDevice};
    const std::lock_guard lock(mutex_);
    bytes = (bytes + kAlign - 1) / kAlign * kAlign;
    for (auto [begin, size] : free_) {
      if (size < bytes) continue;
      free_.erase(begin);
      if (size > bytes) free_[begin + bytes] = size - bytes;
      taken_[begin] = bytes;
      in_use_ += bytes;
      return {far_ + begin, far_ + begin, &Memory::give_back, kDevice};
    }
    TORCH_CHECK(false, "the far device is out of memory");
  }
  c10::DeleterFnPtr raw_deleter() const override { return &Memory::give_back; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(near_of(to), near_of(from), bytes);
  }

 private:
  static constexpr size_t kBytes = 1UL << 30, kAlign = 64;

  void map(int flags = 0) {
    const int file = memfd_create("far device", 0);
    TORCH_CHECK(file >= 0 && ftruncate(file, kBytes) == 0);
    far_ = static_cast<char*>(mmap(far_, kBytes, PROT_NONE, MAP_SHARED | flags, file, 0));
    near_ = static_cast<char*>(mmap(near_, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | flags, file, 0));
    close(file);
    TORCH_CHECK(far_ != MAP_FAILED && near_ != MAP_FAILED);
  }

  static void give_back(void* address);
  void free_block(size_t begin) {
    const std::lock_guard lock(mutex_);
    const auto taken = taken_.find(begin);
    in_use_ -= taken->second;
    auto block = free_.emplace(begin, taken->second).first;
    taken_.erase(taken);
    const auto merge = [this](auto first, auto second) {
      if (second == free_.end() || first->first + first->second != second->first) return false;
      first->second += second->second;
      free_.erase(second);
      return true;
    };
    merge(block, std::next(block));
    if (block != free_.begin()) merge(std::prev(block), block);
  }

  std::mutex mutex_;
  char *far_ = nullptr, *near_ = nullptr;
  std::map<size_t, size_t> free_;  // begin, size
  std::unordered_map<size_t, size_t> taken_;
  size_t in_use_ = 0;
};

Memory& memory() {
  static Memory* const the_memory = [] {
    pthread_atfork(nullptr, nullptr, [] { memory().leave_parent(); });
    return new Memory;  // tensors may outlive main()
  }();
  return *the_memory;
}

void Memory::give_back(void* address) {
  if (address != nullptr) memory().free_block(static_cast<size_t>(static_cast<char*>(address) - memory().far_));
}

// A tensor of the CPU on the same memory.
at::Tensor near_of(const at::Tensor& far) {
  const c10::Storage storage(
      c10::Storage::use_byte_size_t(), far.storage().nbytes(),
      c10::DataPtr(far.storage().data() == nullptr ? nullptr : memory().near_of(far.storage().data()),
                   at::Device(at::kCPU)));
  return at::empty({0}, far.scalar_type()).set_(storage, far.storage_offset(), far.sizes(), far.strides());
}

// The arguments of one call, moved near, and its results, moved far.
class Call {
 public:
  explicit Call(const c10::OperatorHandle& op) : name_(op.schema().name()) {}

  c10::IValue near(const c10::IValue& value) {
    if (value.isTensor()) return near(value.toTensor());
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& each : value.toTensorVector()) list.push_back(near(each));
      return list;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor>& each : value.toOptionalTensorVector()) {
        list.push_back(each ? std::optional(near(*each)) : std::nullopt);
      }
      return list;
    }
    if (value.isDevice()) return at::Device(at::kCPU);
    return value;
  }

  c10::IValue far(const c10::IValue& value) const {
    if (value.isTensor()) return far(value.toTensor());
    if (!value.isTensorList()) return value;
    c10::List<at::Tensor> list;
    for (const at::Tensor& each : value.toTensorVector()) list.push_back(far(each));
    return list;
  }

 private:
  at::Tensor near(const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    if (tensor.is_cpu()) {
      TORCH_CHECK(tensor.dim() == 0, name_, ": tensors are on two devices, the CPU and the far one");
      return tensor;
    }
    pairs_.emplace_back(tensor, near_of(tensor));
    return pairs_.back().second;
  }

  at::Tensor far(const at::Tensor& result) const {
    if (!result.defined()) return result;
    for (const auto& [far, near] : pairs_) {
      if (near.is_same(result)) return far;
    }
    TORCH_CHECK(result.numel() == 0 || !memory().is_near(result.data_ptr()), name_, " makes views: give it a kernel");
    at::Tensor moved = at::empty_strided(result.sizes(), result.strides(), result.options().device(kDevice));
    near_of(moved).copy_(result);
    return moved;
  }

  std::string name_;
  std::vector<std::pair<at::Tensor, at::Tensor>> pairs_;
};

void on_the_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  drain_far_stream(current_far_stream());
  Call call(op);
  const auto end = [stack](size_t count) { return stack->end() - static_cast<std::ptrdiff_t>(count); };
  for (auto value = end(op.schema().arguments().size()); value != stack->end(); ++value) *value = call.near(*value);
  op.callBoxed(stack);
  for (auto value = end(op.schema().returns().size()); value != stack->end(); ++value) *value = call.far(*value);
}

at::Tensor& copy(at::Tensor& to, const at::Tensor& from, bool /*non_blocking*/) {
  drain_far_stream(current_far_stream());
  const auto near = [](const at::Tensor& tensor) { return tensor.is_cpu() ? tensor : near_of(tensor); };
  near(to).copy_(near(from));
  return to;
}

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, &memory(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   dtype.value_or(at::kFloat), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &memory(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           dtype.value_or(at::kFloat));
}

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  at::DeviceType type() const override { return kFar; }
  at::Device exchangeDevice(at::Device) const override { return kDevice; }
  at::Device getDevice() const override { return kDevice; }
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

  void record(void** event, const c10::Stream& on, c10::DeviceIndex, c10::EventFlag) const override {
    record_far_event(event, on.id());
  }
  void block(void* event, const c10::Stream& waiting) const override { block_on_far_event(event, waiting.id()); }
  bool queryEvent(void* event) const override { return has_far_event_passed(event); }
  void synchronizeEvent(void* event) const override { await_far_event(event); }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override { destroy_far_event(event); }

  c10::DeviceIndex deviceCount() const noexcept override { return 1; }

 private:
  static c10::Stream stream(c10::StreamId id) { return c10::Stream(c10::Stream::UNSAFE, kDevice, id); }
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
};

void register_far_device() {
  set_near_of([](const void* far_address) { return memory().near_of(far_address); });
  c10::register_privateuse1_backend("far");
  c10::SetAllocator(kFar, &memory());
  static const c10::impl::DeviceGuardImplRegistrar guard(kFar, new Guard);
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  static torch::Library all(torch::Library::IMPL, "_", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  all.fallback(torch::CppFunction::makeFromBoxedFunction<&on_the_cpu>());
  static torch::Library aten(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  aten.impl("empty.memory_format", &empty);
  aten.impl("empty_strided", &empty_strided);
  aten.impl("copy_", &copy);
  aten.impl("as_strided", &at::native::as_strided_tensorimpl);
  aten.impl("view", static_cast<at::Tensor (*)(const at::Tensor&, at::IntArrayRef)>(&at::native::view));
  aten.impl("_reshape_alias", &at::native::_reshape_alias);
  aten.impl("_has_compatible_shallow_copy_type", [](const at::Tensor&, const at::Tensor&) { return true; });
}

}  // namespace

at::Device far_device() {
  static const bool once = (register_far_device(), true);
  static_cast<void>(once);
  return kDevice;
}

size_t far_bytes_in_use() { return memory().in_use(); }

}  // namespace tessera::test
