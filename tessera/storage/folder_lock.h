// One process at a time saves into a folder: two runs would remove each other's checkpoints.
//
// The file <folder>/.tessera.lock is locked with fcntl, so the lock ends with the process however it ends, and names
// its holder: host, pid, since when. Of hosts that do not see each other's locks (NFS mounted with `nolock`), the
// holder shows that it runs by touching the file every few seconds; one that does not is taken for dead.
//
//   const FolderLock lock(folder);   // as long as the folder is saved into
#pragma once

#include <filesystem>
#include <memory>
#include <string>

namespace tessera::storage {

class FolderLock {
 public:
  // Makes the folder where it is missing. The locks that a process has on one folder are one. Safe from any thread.
  // Takes up to 10 s where the file names a process of another host, which is then watched. ErrorKind::kUsage, naming
  // the holder, where another process has the lock, also where it took this process's over, which was stopped for long;
  // kMachine where the folder cannot be written.
  explicit FolderLock(const std::filesystem::path& folder);

  // The last one of the process removes the file.
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  class Held;
  struct Registry;
  static Registry& registry();

  std::string folder_;
  std::shared_ptr<Held> held_;
};

}  // namespace tessera::storage
