// The last steps of every save, by the one process that leads it. The shard files lie in <folder>/<tag>.saving by then,
// each fsynced:
//   0) manifest.json is written there and fsynced   1) the folder becomes <folder>/<tag>   2) `latest` is replaced
#pragma once

#include <filesystem>

#include "tessera/checkpoint/manifest.h"

namespace tessera::checkpoint {

// ErrorKind::kUsage where no checkpoint can have this tag.
void check_new_tag(const std::string& tag);

// ErrorKind::kUsage where there is a checkpoint already, which a program that only converts must not replace.
void require_new(const std::filesystem::path& checkpoint_folder);

// ErrorKind::kMachine when the disk refuses.
void publish_checkpoint(const std::filesystem::path& folder, const Manifest& manifest, bool sets_latest);

}  // namespace tessera::checkpoint
