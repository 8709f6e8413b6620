#include "tessera/base/atomic_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <cerrno>

#include "tessera/base/error.h"
#include "tessera/base/fault_point.h"

namespace tessera {
namespace fs = std::filesystem;

void machine_refused(const std::string& what, int error_number, const fs::path& path) {
  const bool in_the_way = error_number == ENOTDIR || error_number == EEXIST;
  throw Error(ErrorKind::kMachine, {what + ": " + errno_text(error_number), path.string(),
                                    in_the_way ? "name another place: a file lies where a folder has to be"
                                               : "free some space, or fix the folder's permissions"});
}

void sync_folder(const fs::path& folder) {
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) machine_refused("the folder cannot be opened", errno, folder);
  const int synced = fsync(fd);
  const int error_number = errno;
  close(fd);
  if (synced != 0 && error_number != EINVAL) machine_refused("the folder cannot be flushed", error_number, folder);
}

void sync_folder_of(const fs::path& path) {
  const fs::path parent = fs::absolute(path).parent_path();
  sync_folder(parent.empty() ? fs::path("/") : parent);
}

void write_file_atomically(const fs::path& path, const std::string& text) {
  const fs::path aside = path.string() + ".new";
  unlink(aside.c_str());  // of an interrupted write; what it links to is left alone
  const int fd = open(aside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
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
  sync_folder_of(path);
}

}  // namespace tessera
