// A stand-in for torch's ProcessGroupNCCL on the far device, made of the stand-in for NCCL's library: a collective runs
// on a stream of the group's own, which waits for the caller's, and Work::wait() makes the caller's stream wait for it.
// Messages are taken between startCoalescing() and endCoalescing().
#pragma once

#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace tessera::test {

// As init_process_group() leaves it: it has connected nobody yet. `library`: the file of the stand-in.
c10::intrusive_ptr<c10d::Backend> far_torch_group(int rank, int size, const std::string& library);

}  // namespace tessera::test
