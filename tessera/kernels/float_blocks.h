// A flat fp32, bf16 or fp16 tensor as fp32, a block at a time: what loops over elements read and write. Rounds to
// nearest, ties to even, by the same operations on every machine.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera::kernels {

// Contiguous, on the CPU; not owned. Threads may work on different blocks.
class FloatBlocks {
 public:
  explicit FloatBlocks(const at::Tensor& tensor);

  static bool holds(at::ScalarType dtype);

  // Elements `first` to `first` + `count`: the tensor's own memory, or widened into `buffer`.
  float* widened(int64_t first, int64_t count, float* buffer) const;

  // Nothing to do where `values` are the tensor's own memory.
  void narrow(int64_t first, int64_t count, const float* values) const;

  // The same bits, bypassing the caches, for what nobody reads soon. `values` are not the tensor's own memory.
  void stream(int64_t first, int64_t count, const float* values) const;

  // Streamed stores may be reordered with later ones of this thread; after this call they are visible first.
  static void finish_streams();

 private:
  at::ScalarType dtype_;
  char* data_;
  int64_t size_;
};

}  // namespace tessera::kernels
