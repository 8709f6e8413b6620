// Files from outside. Only regular ones are opened: a pipe would be waited for, and a device read without an end.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "tessera/base/error.h"

namespace tessera {

inline constexpr uint64_t kMostText = 1ULL << 30;  // bytes of a file that is read as a whole

// Throws an Error of that kind where there is no regular file, or this process may not read it.
void require_input_file(const std::filesystem::path& path, ErrorKind kind = ErrorKind::kData);

// The whole file; an Error of that kind as above, or where it has more than `at_most` bytes.
std::string read_input_file(const std::filesystem::path& path, ErrorKind kind = ErrorKind::kData,
                            uint64_t at_most = kMostText);

}  // namespace tessera
