// The device on which a rank trains.
#pragma once

#include <c10/core/Device.h>

#include <string>

namespace tessera::storage {

// `name` is "cpu", or a kind of device ("cuda"): the one of this host's whose turn it is by the local rank, so ranks
// share them where there are fewer. "cuda:1" is that one. "auto": cuda where there is one, else cpu. ErrorKind::kConfig
// at `where` names what is not there.
c10::Device device_of_rank(const std::string& name, int local_rank, const std::string& where);

// Returns when the device has done what it was told.
void synchronize(c10::Device device);

}  // namespace tessera::storage
