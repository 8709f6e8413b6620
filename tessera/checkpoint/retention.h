// Which checkpoints there are, and which of them are kept.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tessera::checkpoint {

struct Retention {
  int64_t keep_last = 0;   // 0: all
  int64_t keep_every = 0;  // also those whose step is a multiple of this; 0: none
};

// The tags of a folder's checkpoints, those that have a manifest.json, the newest (by steps, then time) first. Whether
// they are intact is not checked. Interrupted saves are not checkpoints.
std::vector<std::string> tags_of(const std::filesystem::path& folder);

// Removes checkpoints "global_step<N>" of the folder that `retention` does not keep, and what interrupted saves left;
// never the one that `latest` names, nor `except` (a tag that is being saved). Failures to remove are logged, not
// thrown. Returns the removed tags. One rank calls it.
std::vector<std::string> prune(const std::filesystem::path& folder, const Retention& retention,
                               const std::string& except = "");

}  // namespace tessera::checkpoint
