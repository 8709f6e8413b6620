#include "tessera/storage/scratch_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "tessera/base/error.h"
#include "tessera/base/format.h"

namespace tessera::storage {
namespace {

[[noreturn]] void refuse(const std::string& what, int error_number, const std::string& path) {
  const bool missing = error_number == ENOENT || error_number == ENOTDIR;
  throw Error(ErrorKind::kMachine,
              {what + ": " + errno_text(error_number), path,
               missing ? "name a folder that exists and is writable" : "free some space or choose another folder"});
}

// Has no name from the beginning where the file system can do that, else for the moment between two calls.
int open_without_name(const std::string& folder, int extra_flags) {
  const int flags = O_RDWR | O_CLOEXEC | extra_flags;
  const int fd = open(folder.c_str(), flags | O_TMPFILE, 0600);
  if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR)) return fd;
  static std::atomic<int> number = 0;
  const std::string name = fmt::format("{}/.tessera-{}-{}", folder, getpid(), number++);
  const int named = open(name.c_str(), flags | O_CREAT | O_EXCL, 0600);
  if (named >= 0) unlink(name.c_str());
  return named;
}

}  // namespace

ScratchFile::ScratchFile(const std::string& folder, const std::string& named_by)
    : file_{open_without_name(folder, O_DIRECT), named_by.empty() ? folder : named_by + ": " + folder} {
  direct_ = file_.fd >= 0;
  if (!direct_ && errno == EINVAL) file_.fd = open_without_name(folder, 0);  // tmpfs and others have no direct I/O
  if (file_.fd < 0) refuse("cannot create a file in this folder", errno, file_.path);
}

ScratchFile::~ScratchFile() { close(file_.fd); }

void ScratchFile::reserve(uint64_t bytes) {
  const int result = posix_fallocate(file_.fd, 0, static_cast<off_t>(bytes));
  if (result != 0) refuse(fmt::format("there is no space for {}", format_bytes(bytes)), result, file_.path);
}

}  // namespace tessera::storage
