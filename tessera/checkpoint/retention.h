// Which checkpoints stay.
#pragma once

#include <filesystem>

namespace tessera::checkpoint {

// Removes all but the newest `keep_last` checkpoints "global_step<N>" of the folder, and what interrupted saves left;
// never the one that `latest` names. 0 keeps all. Failures to remove are logged, not thrown. One rank calls it.
void keep_newest(const std::filesystem::path& folder, int64_t keep_last);

}  // namespace tessera::checkpoint
