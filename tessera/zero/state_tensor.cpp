#include "tessera/zero/state_tensor.h"

#include <ATen/ops/from_blob.h>

#include "tessera/base/error.h"

namespace tessera::zero {

StateTensor::StateTensor(std::shared_ptr<storage::SwapFile> file, int64_t numel, at::ScalarType dtype)
    : file_(std::move(file)),
      extent_(file_->allocate(static_cast<uint64_t>(numel) * c10::elementSize(dtype))),
      numel_(numel),
      dtype_(dtype) {}

const at::Tensor& StateTensor::tensor() const {
  TESSERA_INVARIANT(!swapped());
  return tensor_;
}

size_t StateTensor::padded_bytes(layout::Range range) const {
  return storage::whole_pages(static_cast<size_t>(range.numel()) * c10::elementSize(dtype_));
}

at::Tensor StateTensor::view_in(storage::AlignedBuffer& buffer, layout::Range range) const {
  buffer.reserve(padded_bytes(range));
  return at::from_blob(buffer.data(), {range.numel()}, dtype());
}

storage::SwapFile::Transfer StateTensor::start_read(layout::Range range, storage::AlignedBuffer& buffer) const {
  TESSERA_INVARIANT(range.begin % kTileAlign == 0 && range.end <= numel_);
  buffer.reserve(padded_bytes(range));
  return file_->start_read(extent_, static_cast<uint64_t>(range.begin) * c10::elementSize(dtype_), buffer.data(),
                           padded_bytes(range));
}

storage::SwapFile::Transfer StateTensor::start_write(layout::Range range, const storage::AlignedBuffer& buffer) const {
  TESSERA_INVARIANT(range.begin % kTileAlign == 0 && range.end <= numel_ && buffer.capacity() >= padded_bytes(range));
  return file_->start_write(extent_, static_cast<uint64_t>(range.begin) * c10::elementSize(dtype_), buffer.data(),
                            padded_bytes(range));
}

at::Tensor StateTensor::load() const {
  if (!swapped()) return tensor_;
  auto buffer = std::make_shared<storage::AlignedBuffer>();
  finish(start_read({0, numel_}, *buffer));
  return at::from_blob(
      buffer->data(), {numel_}, [buffer](void*) {}, dtype_);
}

void StateTensor::store(const at::Tensor& values) const {
  if (!swapped()) {
    if (!tensor_.is_same(values)) tensor_.copy_(values);
    return;
  }
  storage::AlignedBuffer buffer;
  view_in(buffer, {0, numel_}).copy_(values);
  finish(start_write({0, numel_}, buffer));
}

}  // namespace tessera::zero
