// An exchange of tensors on devices, made of one that moves host memory: what a rank sends is copied into that memory
// first, what arrives is copied out of it. CPU tensors pass through as they are, so each rank may have either.
//
// Sums have the bits that they have on the CPU. A GPU's own links (NCCL) would be faster; this needs none, and ranks
// may share a device.
#pragma once

#include <memory>

#include "tessera/comm/exchange.h"

namespace tessera::comm {

std::unique_ptr<Exchange> make_staged_exchange(std::unique_ptr<Exchange> of_host_memory, int rank);

}  // namespace tessera::comm
