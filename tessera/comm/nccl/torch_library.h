// torch's own NCCL group in place of NCCL's library (library.h), where a program in Python has one. Communicators are
// groups of their own that come from it, so the settings which the program gave it hold for them too: time-out, whether
// a late collective ends the process, torch's flight recorder.
//
// Only what c10d::Backend has is used, which every LibTorch exports: no header of CUDA's or NCCL's, nor of torch's
// groups for them. A call queues on the current stream of its thread, which is the stream it is given.
#pragma once

#include <c10/core/Device.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "tessera/comm/nccl/library.h"

namespace tessera::comm::nccl {

// For communicators whose tensors are on `device`. They meet in `store`, which they clone.
Library library_of_torch(c10::intrusive_ptr<c10d::Backend> group, at::Device device,
                         c10::intrusive_ptr<c10d::Store> store);

}  // namespace tessera::comm::nccl
