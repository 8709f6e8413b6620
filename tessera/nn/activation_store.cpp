#include "tessera/nn/activation_store.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/format.h"

namespace tessera::nn {
namespace {

constexpr int64_t kSlotAlignBytes = 64;  // of every dtype a multiple
constexpr size_t kLeastBytesInFile = 4096;

thread_local std::shared_ptr<ActivationStore> current_store;

}  // namespace

struct KeptTensor::InFile {
  std::shared_ptr<ActivationFile> file;
  size_t number;
  std::vector<int64_t> sizes, strides;
  at::ScalarType dtype;

  InFile(std::shared_ptr<ActivationFile> in, const at::Tensor& tensor)
      : file(std::move(in)),
        number(file->write(tensor)),
        sizes(tensor.sizes().vec()),
        strides(tensor.strides().vec()),
        dtype(tensor.scalar_type()) {}
  ~InFile() { file->forget(number); }
  InFile(const InFile&) = delete;
  InFile& operator=(const InFile&) = delete;
};

at::Tensor KeptTensor::restore() const {
  if (in_file_) {
    const at::NoGradGuard no_grad;
    const at::Tensor tensor = at::empty_strided(in_file_->sizes, in_file_->strides, in_file_->dtype);
    in_file_->file->read(in_file_->number, tensor);
    return tensor.to(device_);
  }
  if (on_host_) return on_host_->restore();
  if (!tensor_.defined()) return {};
  if (version_ >= 0 && tensor_._version() != version_) {
    throw Error(ErrorKind::kUsage,
                {"an input of an activation checkpoint was changed in place before backward had used it",
                 "nn::checkpoint", "change a copy, or keep the in-place operation out of the function"});
  }
  const at::NoGradGuard no_grad;
  return tensor_.detach().to(device_);
}

// Bytes for `used.size()` tensors of at most `slot_bytes`.
struct ActivationStore::Buffer {
  at::Tensor bytes;
  int64_t slot_bytes;
  std::vector<bool> used;
};

ActivationStore::Slot ActivationStore::take_slot(size_t input, at::Device device, int64_t size_bytes) {
  std::shared_ptr<Buffer>& buffer = buffers_[input];
  if (!buffer || buffer->slot_bytes < size_bytes || buffer->bytes.device() != device) {
    // What still waits in a smaller buffer keeps that alive.
    const int64_t slot_bytes = (size_bytes + kSlotAlignBytes - 1) / kSlotAlignBytes * kSlotAlignBytes;
    buffer = std::make_shared<Buffer>(
        Buffer{at::empty({slot_bytes * options_.slots}, at::TensorOptions(at::kByte).device(device)), slot_bytes,
               std::vector<bool>(options_.slots, false)});
  }
  const auto free = std::find(buffer->used.begin(), buffer->used.end(), false);
  if (free == buffer->used.end()) {
    throw Error(
        ErrorKind::kConfig,
        {fmt::format("more than {} waiting for backward at once", count_of(options_.slots, "activation checkpoint")),
         "activation_checkpointing.number_checkpoints",
         "set it to the number of checkpoints in one forward pass, or set contiguous_memory_optimization to false"});
  }
  const auto slot = free - buffer->used.begin();
  *free = true;
  return {buffer->bytes.narrow(0, slot * buffer->slot_bytes, size_bytes),
          std::shared_ptr<void>(nullptr, [buffer, slot](void*) { buffer->used[slot] = false; })};
}

KeptTensor ActivationStore::keep(size_t input, const at::Tensor& tensor) {
  KeptTensor kept;
  if (!tensor.defined()) return kept;
  const at::NoGradGuard no_grad;
  kept.device_ = tensor.device();
  const at::Device waits_on = options_.in_host_memory ? at::Device(at::kCPU) : tensor.device();
  const bool is_dense_float = tensor.is_floating_point() && tensor.is_non_overlapping_and_dense();
  if (options_.file && is_dense_float && tensor.nbytes() >= kLeastBytesInFile) {
    kept.in_file_ = std::make_shared<KeptTensor::InFile>(options_.file, tensor.detach().to(at::kCPU));
  } else if (options_.slots > 0 && is_dense_float) {
    Slot slot = take_slot(input, waits_on, tensor.numel() * tensor.element_size());
    kept.tensor_ = slot.bytes.view(tensor.scalar_type()).as_strided(tensor.sizes(), tensor.strides());
    kept.tensor_.copy_(tensor);
    kept.release_ = std::move(slot.release);
  } else if (waits_on != tensor.device() && options_.host_copies && is_dense_float) {
    kept.on_host_ = options_.host_copies->keep(tensor.detach());
  } else if (waits_on != tensor.device()) {
    kept.tensor_ = tensor.detach().to(waits_on);
  } else {
    kept.tensor_ = tensor.detach();
    if (!tensor.is_inference()) kept.version_ = tensor._version();
  }
  return kept;
}

const std::shared_ptr<ActivationStore>& ActivationStore::current() {
  if (!current_store) current_store = std::make_shared<ActivationStore>(ActivationStoreOptions{});
  return current_store;
}

ActivationStore::Scope::Scope(std::shared_ptr<ActivationStore> store)
    : previous_(std::exchange(current_store, std::move(store))) {}

ActivationStore::Scope::~Scope() { current_store = std::move(previous_); }

}  // namespace tessera::nn
