#include "tessera/storage/file_output.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "tessera/base/error.h"
#include "tessera/base/fault_point.h"

namespace tessera::storage {
namespace {

constexpr size_t kInPlace = 1000;  // tag of a block that is no buffer's

[[noreturn]] void refused(const std::string& what, int error_number, const std::string& path) {
  throw Error(ErrorKind::kMachine,
              {what + ": " + errno_text(error_number), path, "free some space or choose another folder"});
}

int open_output(const std::string& path) {
  constexpr int kFlags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  unlink(path.c_str());  // an earlier file; what a link points to is left alone
  int fd = open(path.c_str(), kFlags | O_DIRECT, 0644);
  if (fd < 0 && errno == EINVAL) {  // tmpfs and others have no direct I/O, which they find after they made the file
    unlink(path.c_str());
    fd = open(path.c_str(), kFlags, 0644);
  }
  if (fd < 0) refused("the file cannot be created", errno, path);
  return fd;
}

}  // namespace

FileOutput::FileOutput(const std::string& path, uint64_t expected_bytes) : file_{open_output(path), path} {
  if (expected_bytes == 0) return;
  const int result = posix_fallocate(file_.fd, 0, static_cast<off_t>(expected_bytes));
  if (result == ENOSPC || result == EFBIG || result == EDQUOT) {
    close(file_.fd);
    unlink(path.c_str());
    refused("there is no space for the file", result, path);
  }
}

FileOutput::~FileOutput() {
  queue_.drain();
  if (file_.fd >= 0) close(file_.fd);
}

void FileOutput::write_block(const char* bytes, size_t count, size_t tag) {
  fault_point();
  sum_.blocks.push_back(hash_of(bytes, count));
  sum_.bytes += count;
  const size_t padded = whole_pages(count);
  queue_.start_write(file_, bytes, padded, written_, tag);
  written_ += padded;
}

void FileOutput::claim_buffer(size_t number) {
  while (busy_[number]) {
    const size_t ended = queue_.wait_one();
    if (ended < kBuffers) busy_[ended] = false;
  }
  buffers_[number].reserve(kSumBlockBytes);
}

void FileOutput::append(const void* bytes, size_t count) {
  const char* from = static_cast<const char*>(bytes);
  while (count > 0) {
    if (filled_ == 0) claim_buffer(current_);
    const size_t part = std::min(count, kSumBlockBytes - filled_);
    std::memcpy(buffers_[current_].data() + filled_, from, part);
    filled_ += part;
    from += part;
    count -= part;
    if (filled_ < kSumBlockBytes) continue;
    busy_[current_] = true;
    write_block(buffers_[current_].data(), filled_, current_);
    current_ = (current_ + 1) % kBuffers;
    filled_ = 0;
  }
}

void FileOutput::append_in_place(const char* bytes, size_t count) {
  TESSERA_INVARIANT(sum_.bytes == 0 && filled_ == 0);
  while (count >= kSumBlockBytes) {
    write_block(bytes, kSumBlockBytes, kInPlace);
    bytes += kSumBlockBytes;
    count -= kSumBlockBytes;
  }
  append(bytes, count);
}

FileSum FileOutput::finish() {
  if (filled_ > 0) {
    const size_t padded = whole_pages(filled_);
    std::memset(buffers_[current_].data() + filled_, 0, padded - filled_);
    busy_[current_] = true;
    write_block(buffers_[current_].data(), filled_, current_);
    filled_ = 0;
  }
  queue_.wait_all();
  fault_point();
  if (ftruncate(file_.fd, static_cast<off_t>(sum_.bytes)) != 0 || fsync(file_.fd) != 0) {
    refused("writing failed", errno, file_.path);
  }
  const int closed = close(file_.fd);
  file_.fd = -1;
  if (closed != 0) refused("writing failed", errno, file_.path);
  return sum_;
}

}  // namespace tessera::storage
