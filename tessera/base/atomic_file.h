// A file that becomes visible whole or not at all. Errors: ErrorKind::kMachine with errno and path.
#pragma once

#include <filesystem>
#include <string>

namespace tessera {

// Replaces `path` by a file with this text: written aside, fsynced, renamed, the folder fsynced.
void write_file_atomically(const std::filesystem::path& path, const std::string& text);

// fsyncs the folder that holds `path`, so that a rename in it is on the disk.
void sync_folder_of(const std::filesystem::path& path);
void sync_folder(const std::filesystem::path& folder);

// The machine refused: `what`, with the reason that the system gave.
[[noreturn]] void machine_refused(const std::string& what, int error_number, const std::filesystem::path& path);

}  // namespace tessera
