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
// never those that `latest` and `best_checkpoint` name, nor `except` (a tag that is being saved). Failures to remove
// are logged, not thrown. Returns the removed tags. One rank calls it.
std::vector<std::string> prune(const std::filesystem::path& folder, const Retention& retention,
                               const std::string& except = "");

// The checkpoint that a trainer found best, named by the file `best_checkpoint` beside `latest`; empty where there is
// none. One rank sets it, once the checkpoint is whole.
std::string read_best(const std::filesystem::path& folder);
void set_best(const std::filesystem::path& folder, const std::string& tag);

}  // namespace tessera::checkpoint
