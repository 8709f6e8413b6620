// All that `tessera env` and DeepSpeed's `ds_report` say of a machine: versions, processors, memory, devices, how ranks
// would talk, how files would be read and written, and limits. Changes nothing.
#pragma once

#include <string>
#include <vector>

#include "tessera/base/fact.h"

namespace tessera::engine {

std::vector<Fact> environment_facts();

// Of the LibTorch that this process runs with, which may be a later patch release than it was built for: "2.13.0".
std::string libtorch_version();

}  // namespace tessera::engine
