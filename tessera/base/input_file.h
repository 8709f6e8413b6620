// Files from outside. Only regular ones are opened: a pipe would be waited for, and a device read without an end.
#pragma once

#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <string>
#include <vector>

#include "tessera/base/error.h"

namespace tessera {

inline constexpr uint64_t kMostText = 1ULL << 30;  // bytes of a file that is read as a whole

// Throws an Error of that kind where there is no regular file, or this process may not read it.
void require_input_file(const std::filesystem::path& path, ErrorKind kind = ErrorKind::kData);

// The whole file; an Error of that kind as above, or where it has more than `at_most` bytes.
std::string read_input_file(const std::filesystem::path& path, ErrorKind kind = ErrorKind::kData,
                            uint64_t at_most = kMostText);

// Its lines, without their ends.
std::vector<std::string> read_input_lines(const std::filesystem::path& path, ErrorKind kind = ErrorKind::kData);

// For a file that is read bit by bit. A stream takes a drive's error for the end of the file: ask require_read_whole
// after the last bit.
std::ifstream open_input_file(const std::filesystem::path& path, ErrorKind kind = ErrorKind::kData);
void require_read_whole(const std::ifstream& file, const std::filesystem::path& path,
                        ErrorKind kind = ErrorKind::kData);

}  // namespace tessera
