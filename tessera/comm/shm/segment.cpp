#include "tessera/comm/shm/segment.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "tessera/base/env.h"
#include "tessera/base/error.h"
#include "tessera/base/format.h"

namespace tessera::comm::shm {

void refuse(const std::string& what, const std::string& fix) {
  throw Error(ErrorKind::kMachine,
              {fmt::format("shared memory between ranks: {}: {}", what, errno_text(errno)), "this host", fix});
}

namespace {

// Known to nobody: it is unlinked before anybody can look it up.
UniqueFd open_posix_object() {
  const std::string name = fmt::format("/tessera-{}-{}", getpid(), static_cast<const void*>(&name));
  UniqueFd file(shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600));
  if (!file.open()) refuse("neither memfd_create nor shm_open works");
  shm_unlink(name.c_str());
  return file;
}

UniqueFd open_memory_file() {
  if (env_choice("TESSERA_SHM", {"memfd", "posix"}) == "posix") return open_posix_object();
  UniqueFd file(memfd_create("tessera", MFD_CLOEXEC));
  return file.open() ? std::move(file) : open_posix_object();
}

}  // namespace

Segment Segment::create(size_t bytes) {
  UniqueFd file = open_memory_file();
  rlimit allowed{};
  getrlimit(RLIMIT_FSIZE, &allowed);  // beyond it, ftruncate would end the process
  const bool too_large = allowed.rlim_cur != RLIM_INFINITY && allowed.rlim_cur < bytes;
  if (too_large) errno = EFBIG;
  if (too_large || ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) {
    refuse("making a memory file of " + format_bytes(bytes), "raise the file size limit (ulimit -f)");
  }
  return Segment(std::move(file));
}

Segment::Segment(UniqueFd file) : file_(std::move(file)) {
  struct stat status {};
  if (fstat(file_.get(), &status) != 0) refuse("asking for the size of a memory file");
  bytes_ = static_cast<size_t>(status.st_size);
  void* const data = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file_.get(), 0);
  if (data == MAP_FAILED) {
    refuse("mapping " + format_bytes(bytes_), "raise the address space limit (ulimit -v), or set TESSERA_BACKEND=gloo");
  }
  data_ = static_cast<std::byte*>(data);
  madvise(data, bytes_, MADV_HUGEPAGE);  // where the system allows huge pages for shared memory
}

Segment::Segment(Segment&& other) noexcept
    : file_(std::move(other.file_)),
      bytes_(std::exchange(other.bytes_, 0)),
      data_(std::exchange(other.data_, nullptr)) {}

Segment::~Segment() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

bool Segment::reserve(size_t offset, size_t bytes) const {
  int result = 0;
  do {
    result = fallocate(file_.get(), 0, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  return result == 0;
}

void Segment::discard(size_t offset, size_t bytes) const {
  fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
            static_cast<off_t>(bytes));
}

}  // namespace tessera::comm::shm
