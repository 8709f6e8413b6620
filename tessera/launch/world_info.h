// The hosts and slots of a run as one word of a command line, by which one launcher tells another (DeepSpeed's
// --world_info): JSON {"worker-0": [0, 1]} in base64 of RFC 4648, section 5, with its padding.
#pragma once

#include <string>
#include <vector>

#include "tessera/launch/hostfile.h"

namespace tessera::launch {

std::string encode_world_info(const std::vector<HostSlots>& hosts);

// A host's value may be a number of slots in place of their list. ErrorKind::kUsage for text that is none of ours.
std::vector<HostSlots> decode_world_info(const std::string& text);

}  // namespace tessera::launch
