// Whether a name of a hostfile means the host that asks.
#pragma once

#include <string>

namespace tessera::launch {

// localhost, its own name, or a name whose address a socket of this host can be bound to.
bool is_this_host(const std::string& name);

}  // namespace tessera::launch
