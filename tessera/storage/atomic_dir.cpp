#include "tessera/storage/atomic_dir.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <sstream>
#include <system_error>

#include "tessera/base/error.h"
#include "tessera/base/fault_point.h"

namespace tessera::storage {
namespace fs = std::filesystem;

namespace {

[[noreturn]] void machine_refused(const std::string& what, int error_number, const fs::path& path) {
  throw Error(ErrorKind::kMachine, {what + ": " + errno_text(error_number), path.string(),
                                    "free some space, or fix the folder's permissions"});
}

void sync_folder(const fs::path& folder) {
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) machine_refused("the folder cannot be opened", errno, folder);
  const int synced = fsync(fd);
  const int error_number = errno;
  close(fd);
  if (synced != 0 && error_number != EINVAL) machine_refused("the folder cannot be flushed", error_number, folder);
}

fs::path parent_of(const fs::path& path) {
  const fs::path parent = fs::absolute(path).parent_path();
  return parent.empty() ? fs::path("/") : parent;
}

}  // namespace

fs::path aside_of(const fs::path& final_folder) { return final_folder.string() + ".saving"; }

void create_aside(const fs::path& final_folder) {
  const fs::path aside = aside_of(final_folder);
  std::error_code error;
  fs::remove_all(aside, error);
  if (!error) fs::create_directories(aside, error);
  if (error) machine_refused("the folder cannot be created", error.value(), aside);
}

void publish(const fs::path& final_folder) {
  const fs::path aside = aside_of(final_folder);
  sync_folder(aside);
  std::error_code error;
  // At no moment without a folder of that name, where the file system can exchange two names.
  if (fs::exists(final_folder, error) &&
      renameat2(AT_FDCWD, aside.c_str(), AT_FDCWD, final_folder.c_str(), RENAME_EXCHANGE) == 0) {
    fault_point();
    sync_folder(parent_of(final_folder));
    fs::remove_all(aside, error);
    return;
  }
  if (fs::exists(final_folder, error)) {
    const fs::path old = final_folder.string() + ".old";
    fs::remove_all(old, error);
    fs::rename(final_folder, old, error);
    if (error) machine_refused("the earlier folder cannot be moved aside", error.value(), final_folder);
    fault_point();
  }
  fs::rename(aside, final_folder, error);
  if (error) machine_refused("the folder cannot be renamed", error.value(), aside);
  sync_folder(parent_of(final_folder));
  fs::remove_all(final_folder.string() + ".old", error);
}

void abandon(const fs::path& final_folder) noexcept {
  std::error_code error;
  fs::remove_all(aside_of(final_folder), error);
}

void write_file_atomically(const fs::path& path, const std::string& text) {
  const fs::path aside = path.string() + ".new";
  const int fd = open(aside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) machine_refused("the file cannot be created", errno, aside);
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t written = write(fd, text.data() + done, text.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      const int error_number = errno;
      close(fd);
      unlink(aside.c_str());
      machine_refused("writing failed", error_number, aside);
    }
    done += static_cast<size_t>(written);
  }
  fault_point();
  const int synced = fsync(fd);
  const int error_number = errno;
  close(fd);
  if (synced != 0) machine_refused("writing failed", error_number, aside);
  if (rename(aside.c_str(), path.c_str()) != 0) machine_refused("the file cannot be renamed", errno, aside);
  sync_folder(parent_of(path));
}

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file || fs::is_directory(path)) {
    throw Error(ErrorKind::kData, {"the file cannot be read: " + errno_text(fs::exists(path) ? EACCES : ENOENT),
                                   path.string(), "check the path"});
  }
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace tessera::storage
