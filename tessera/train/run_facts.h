// What of a run has to be the same on every rank: its run file, and the files that it names.
#pragma once

#include <string>
#include <vector>

#include "tessera/comm/agreement.h"
#include "tessera/config/run_file.h"

namespace tessera::train {

// Paths may differ from host to host; files may not: each is named by its base name, size and a hash of what stands at
// its beginning, in its middle and at its end. Errors: of files that cannot be read.
std::vector<comm::SharedFacts> facts_of_run(const config::RunFile& run);

// Of those, what the model, its adapter and its tokenizer are read from, a line for each file.
std::string facts_of_model(const config::RunFile& run);

}  // namespace tessera::train
