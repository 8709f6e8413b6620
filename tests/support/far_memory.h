// Memory of the far device, and pinned memory of the host. One piece of the device's memory is at two addresses: the
// far one that tensors have, and the near one that operators use. When freed memory is given out again: far_device.h.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>

#include <cstddef>

namespace tessera::test {

inline const at::Device kFarDevice(c10::DeviceType::PrivateUse1, 0);

c10::Allocator& far_memory();
c10::Allocator& pinned_memory();

void* near_of(const void* far_address);
bool is_near(const void* address);
bool is_pinned(const void* address);

// A tensor of the CPU on the same memory. It holds none.
at::Tensor near_of(const at::Tensor& far);

// Until the stream has come as far as it is now, the memory is not given out again once it is freed.
void keep_for_stream(const void* far_begin, c10::StreamId stream);

// In a forked process: what there is so far becomes its own.
void leave_parents_memory();

struct FarBytes {
  size_t in_use, pinned, most_pinned;
  int64_t pinned_allocations;
};
FarBytes far_bytes();

}  // namespace tessera::test
