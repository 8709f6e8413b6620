// A folder that becomes visible whole or not at all.
//
//   0) create_aside(final): makes <final>.saving, empty; a leftover of an interrupted save is removed
//   1) write files into it, each fsynced
//   2) publish(final): fsyncs the folder, renames it to <final>, fsyncs the parent
//   or abandon(final): removes it
//
// Errors: ErrorKind::kMachine with errno and path. In a run of several ranks one rank calls these; the others write
// between its create_aside and its publish.
#pragma once

#include <filesystem>
#include <string>

namespace tessera::storage {

std::filesystem::path aside_of(const std::filesystem::path& final_folder);

void create_aside(const std::filesystem::path& final_folder);

// Replaces a folder that is already there.
void publish(const std::filesystem::path& final_folder);
void abandon(const std::filesystem::path& final_folder) noexcept;

// Replaces `path` by a file with this text: written aside, fsynced, renamed, the folder fsynced.
void write_file_atomically(const std::filesystem::path& path, const std::string& text);

}  // namespace tessera::storage
