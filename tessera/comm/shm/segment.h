// A stretch of memory that several processes of one host map: made by one, which hands its file descriptor to the
// others. It has no name that anybody could leave behind; the last process that lets go of it, in whatever way it ends,
// frees it.
//
// The size is a bound and costs nothing: pages are there once somebody touches them. Writing to a page for which there
// is no memory would end the process (SIGBUS), so pages are asked for first, with reserve().
#pragma once

#include <cstddef>
#include <string>

#include "tessera/base/unique_fd.h"

namespace tessera::comm::shm {

// ErrorKind::kMachine, with the text of errno.
[[noreturn]] void refuse(const std::string& what, const std::string& fix = "set TESSERA_BACKEND=gloo to do without it");

// `bytes` rounded up to whole pages.
constexpr size_t whole_pages(size_t bytes) {
  constexpr size_t kPage = 4096;
  return (bytes + kPage - 1) / kPage * kPage;
}

class Segment {
 public:
  // An anonymous memory file (memfd); where the kernel refuses that, a POSIX shared memory object, unlinked at once.
  // ErrorKind::kMachine where neither is available, or the address space has no room.
  static Segment create(size_t bytes);

  // What another process made. ErrorKind::kMachine where the address space has no room.
  explicit Segment(UniqueFd file);
  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&&) = delete;
  ~Segment();

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  int file() const { return file_.get(); }

  // False where there is no memory for these pages.
  bool reserve(size_t offset, size_t bytes) const;

  // Gives the memory back; the next touch finds zeros.
  void discard(size_t offset, size_t bytes) const;

 private:
  UniqueFd file_;
  size_t bytes_ = 0;
  std::byte* data_ = nullptr;
};

}  // namespace tessera::comm::shm
