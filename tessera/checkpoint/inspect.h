// Inspecting checkpoints: what a folder holds, what one of them holds, whether its bytes are those that were written,
// and in which tensors two of them differ.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tessera/checkpoint/manifest.h"

namespace tessera::checkpoint {

// Reads every byte. Returns what is wrong, one text per file; empty: all is as it was written. Damage that keeps the
// manifest from being read is one of them.
std::vector<std::string> verify(const std::filesystem::path& checkpoint);

// The same of a folder that export_hf wrote.
std::vector<std::string> verify_export(const std::filesystem::path& folder);

// Where two checkpoints differ in one tensor of one kind.
struct Difference {
  std::string kind;
  std::string tensor;
  std::string what;      // "only in A", "only in B", "shape", "values"
  int64_t elements = 0;  // that differ
  double largest = 0;    // absolute difference
};

// Compares values a piece at a time; with different dtypes as fp64. NaN equals NaN.
std::vector<Difference> compare(const std::filesystem::path& a, const std::filesystem::path& b);

// Bytes of the files.
uint64_t total_bytes(const Manifest& manifest);

}  // namespace tessera::checkpoint
