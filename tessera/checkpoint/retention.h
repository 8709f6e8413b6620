// Which checkpoints a folder has, and those that are not kept.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"

namespace tessera::checkpoint {

// The tags of a folder's checkpoints, those that have a manifest.json, the newest (by steps, then time) first. Whether
// they are intact is not checked. Interrupted saves are not checkpoints.
std::vector<std::string> tags_of(const std::filesystem::path& folder);

// Removes checkpoints "global_step<N>" of the folder that `retention` does not keep, and what interrupted saves left;
// never those that `latest` and `best_checkpoint` name, nor the newest one of training that had not diverged. Failures
// to remove are logged, not thrown. Returns the removed tags. By the process that has the folder's lock.
std::vector<std::string> prune(const std::filesystem::path& folder, const Retention& retention);

// The checkpoint that a trainer found best, named by the file `best_checkpoint` beside `latest`; empty where there is
// none. One rank sets it, once the checkpoint is whole.
std::string read_best(const std::filesystem::path& folder);
void set_best(const std::filesystem::path& folder, const std::string& tag);

}  // namespace tessera::checkpoint
