// A device for tests of what a GPU would do: LibTorch's operators work on it, and nothing else may. Its tensors'
// addresses are readable by nobody, so code of ours that follows one dies of SIGSEGV, as on a device with memory of its
// own; an operator whose tensors are on two devices is an error, as there. Backward runs on a thread of its own, as
// there.
//
// The operators are the CPU's, on a second mapping of the same memory, one after the other, each after what is queued
// on the current stream (far_stream.h). Its random numbers are a generator of its own.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>

namespace tessera::test {

// Before anything else of a process runs a backward: LibTorch counts its devices then.
at::Device far_device();

size_t far_bytes_in_use();

}  // namespace tessera::test
