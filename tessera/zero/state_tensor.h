// One flat tensor of a unit's training state (weights, a moment, a gradient), which rests in memory or in a swap file.
//
// A handle: copies mean the same tensor. Ranges are in elements; one that is read or written by parts begins at a
// multiple of kTileAlign, which is a page in every dtype. Errors: those of storage/swap_file.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "tessera/layout/flat_layout.h"
#include "tessera/storage/aligned_buffer.h"
#include "tessera/storage/swap_file.h"

namespace tessera::zero {

inline constexpr int64_t kTileAlign = 2048;

// A part of a flat tensor; the tensor itself where that is all of it, which costs nothing.
inline at::Tensor elements(const at::Tensor& flat, layout::Range range) {
  if (range.begin == 0 && range.end == flat.numel()) return flat;
  return flat.narrow(0, range.begin, range.numel());
}

class StateTensor {
 public:
  StateTensor() = default;  // undefined
  explicit StateTensor(at::Tensor in_memory) : tensor_(std::move(in_memory)) {}

  // Zeros.
  StateTensor(std::shared_ptr<storage::SwapFile> file, int64_t numel, at::ScalarType dtype);

  bool defined() const { return tensor_.defined() || file_ != nullptr; }
  bool swapped() const { return file_ != nullptr; }
  bool is_on(at::Device device) const { return tensor_.defined() && tensor_.device() == device; }
  at::ScalarType dtype() const { return swapped() ? dtype_ : tensor_.scalar_type(); }
  int64_t numel() const { return swapped() ? numel_ : tensor_.numel(); }
  int64_t bytes() const { return numel() * static_cast<int64_t>(c10::elementSize(dtype())); }

  // Where it rests in memory: the tensor itself.
  const at::Tensor& tensor() const;

  // The tensor itself, or a copy from the file.
  at::Tensor load() const;

  // Takes over the values, which may be the tensor's own.
  void store(const at::Tensor& values) const;

  // Swapped only: a part moves between the file and `buffer`, which grows as needed and is borrowed until finish().
  storage::SwapFile::Transfer start_read(layout::Range range, storage::AlignedBuffer& buffer) const;
  storage::SwapFile::Transfer start_write(layout::Range range, const storage::AlignedBuffer& buffer) const;
  void finish(storage::SwapFile::Transfer transfer) const { file_->finish(transfer); }

  // The elements of `range` that lie in `buffer`, as a tensor that borrows it; reserves their room.
  at::Tensor view_in(storage::AlignedBuffer& buffer, layout::Range range) const;

 private:
  size_t padded_bytes(layout::Range range) const;

  at::Tensor tensor_;
  std::shared_ptr<storage::SwapFile> file_;
  storage::Extent extent_;
  int64_t numel_ = 0;
  at::ScalarType dtype_ = at::kFloat;
};

}  // namespace tessera::zero
