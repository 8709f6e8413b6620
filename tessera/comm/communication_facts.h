// How this process could talk to other ranks: who it is among them, by which name and address its host is found, and
// which backends would work here or why one would not. Starts and sends nothing.
#pragma once

#include <string>
#include <vector>

#include "tessera/base/fact.h"

namespace tessera::comm {

std::vector<Fact> communication_facts();

// Of a host whose name resolves to `address` (empty: it does not), with the addresses of its other interfaces.
Fact host_address_fact(const std::string& address, const std::vector<std::string>& others);

}  // namespace tessera::comm
