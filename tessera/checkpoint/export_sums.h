// checksums.json, beside the files of an exported folder: the formats of Hugging Face have no checksums of their own.
// docs/checkpoint-format.md has the grammar. Only `tessera checkpoint verify` reads it, so that whoever changes such a
// folder on purpose may.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tessera/checkpoint/manifest.h"

namespace tessera::checkpoint {

inline constexpr const char* kExportSums = "checksums.json";

// Whether `tessera checkpoint verify` is to take this folder for an exported one.
bool is_export(const std::filesystem::path& folder);

// Writes <folder>/<name>; returns it with its sum.
ShardFile write_summed(const std::filesystem::path& folder, const std::string& name, const std::string& text);

void write_export_sums(const std::filesystem::path& folder, const std::vector<ShardFile>& files);

// ErrorKind::kData where it is missing or not as it was written.
std::vector<ShardFile> read_export_sums(const std::filesystem::path& folder);

}  // namespace tessera::checkpoint
