#include "tessera/storage/swap_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/storage/aligned_buffer.h"

namespace tessera::storage {
namespace {

[[noreturn]] void refused(const std::string& what, int error_number, const std::string& path, const std::string& fix) {
  throw Error(ErrorKind::kMachine, {what + ": " + errno_text(error_number), path, fix});
}

// A file without a name: where the file system knows no such thing, one whose name is taken away at once.
int open_nameless(const std::string& folder, int flags) {
  const int fd = open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC | flags, 0600);
  if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR)) return fd;
  std::string name = folder + "/tessera-swap-XXXXXX";
  const int named = mkostemp(name.data(), O_CLOEXEC | flags);
  if (named >= 0) unlink(name.c_str());
  return named;
}

}  // namespace

SwapFile::SwapFile(const std::string& folder) : folder_(folder), file_{open_nameless(folder, O_DIRECT), folder} {
  if (file_.fd < 0 && errno == EINVAL) {  // tmpfs and others have no direct I/O
    direct_ = false;
    file_.fd = open_nameless(folder, 0);
  }
  if (file_.fd < 0) {
    refused("the folder for offloaded state cannot be used", errno, folder,
            "create it, or name a writable folder as nvme_path");
  }
}

SwapFile::~SwapFile() {
  try {
    queue_.wait_all();
  } catch (const Error&) {  // nobody needs these bytes any more
  }
  close(file_.fd);
}

Extent SwapFile::allocate(uint64_t bytes) {
  const uint64_t rounded = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  const Extent extent{end_, rounded};
  if (rounded == 0) return extent;
  int result = 0;
  do {
    result = posix_fallocate(file_.fd, static_cast<off_t>(end_), static_cast<off_t>(rounded));
  } while (result == EINTR);
  if (result != 0) {
    refused(fmt::format("there is no room for {} of offloaded state", format_bytes(end_ + rounded)), result, folder_,
            "free some space, or name a folder on a larger disk as nvme_path");
  }
  end_ += rounded;
  return extent;
}

SwapFile::Transfer SwapFile::next_transfer() {
  in_flight_.insert(++last_);
  return last_;
}

SwapFile::Transfer SwapFile::start_read(const Extent& extent, uint64_t from, void* into, size_t bytes) {
  if (bytes == 0) return 0;
  TESSERA_INVARIANT(from + bytes <= extent.bytes);
  const Transfer transfer = next_transfer();
  queue_.start_read(file_, into, bytes, extent.offset + from, transfer);
  return transfer;
}

SwapFile::Transfer SwapFile::start_write(const Extent& extent, uint64_t from, const void* data, size_t bytes) {
  if (bytes == 0) return 0;
  TESSERA_INVARIANT(from + bytes <= extent.bytes);
  const Transfer transfer = next_transfer();
  queue_.start_write(file_, data, bytes, extent.offset + from, transfer);
  return transfer;
}

void SwapFile::finish(Transfer transfer) {
  while (in_flight_.contains(transfer)) in_flight_.erase(queue_.wait_one());
}

}  // namespace tessera::storage
