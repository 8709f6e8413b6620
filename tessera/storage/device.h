// The device on which a rank trains.
#pragma once

#include <c10/core/Device.h>

#include <string>

namespace tessera::storage {

// `name` is "cpu", or a kind of device ("cuda"): this host's devices are dealt out in turn by local rank, so ranks
// share them where there are fewer. "cuda:1" is that one. "auto": cuda where there is one, else cpu. ErrorKind::kConfig
// at `where` names a device that is not there.
c10::Device device_of_rank(const std::string& name, int local_rank, const std::string& where);

// How many of that kind this host has; 0 also where this LibTorch knows none.
int device_count(c10::DeviceType type);

// Returns when the device has finished its queued work.
void synchronize(c10::Device device);

}  // namespace tessera::storage
