// An exchange of tensors anywhere, made of one that moves host memory. CPU tensors pass through it as they are. Tensors
// on devices go to NCCL where it connects the ranks (nccl/device_links.h); else what a rank sends is copied into host
// memory first, and what arrives is copied out of it: then ranks may share a device, each rank's tensor may be
// anywhere, and sums have the bits that they have on the CPU.
//
// Messages between two ranks always go through host memory: they are told apart by tags, which NCCL does not know.
#pragma once

#include <memory>

#include "tessera/comm/exchange.h"

namespace tessera::comm {

namespace nccl {
class DeviceLinks;
}

// `links`: null: without NCCL.
std::unique_ptr<Exchange> make_staged_exchange(std::unique_ptr<Exchange> of_host_memory, int rank, int size,
                                               std::shared_ptr<nccl::DeviceLinks> links);

}  // namespace tessera::comm
