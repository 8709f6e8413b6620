// A disk that fails, for a program started with LD_PRELOAD=libio_faults.so: of the calls of one kind on files under one
// folder, the n-th fails, or that and those after it.
//
//   STORM_UNDER   the folder, or the beginning of a path
//   STORM_CALLS   the kind: open, read, write, fsync, rename, truncate, allocate or mkdir
//   STORM_FIRST   n, counted from 1 in each process
//   STORM_TIMES   how many in a row; 0: all that follow
//   STORM_WITH    ENOSPC or EIO; short: read and write do half of what was asked; slow: after a fifth of a second
//   STORM_RANK    only in the process with this RANK
//   STORM_COUNT   the beginning of a file's name: how many calls of each kind there were is in that file + RANK.KIND
//
// Only calls through the C library are seen: not io_uring (TESSERA_IO=threads does without), nor pages of mapped files.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>

namespace {

constexpr size_t kSector = 512;  // direct I/O is never cut within one

const char* text(const char* name, const char* otherwise) {
  const char* const value = getenv(name);
  return value == nullptr ? otherwise : value;
}

struct Plan {
  const char* under = text("STORM_UNDER", "");
  const char* kind = text("STORM_CALLS", "");
  long first = atol(text("STORM_FIRST", "0"));
  long times = atol(text("STORM_TIMES", "1"));
  const char* with = text("STORM_WITH", "EIO");
  const char* count = text("STORM_COUNT", "");
  const char* rank = text("RANK", "0");
  bool here = *under != '\0' && strcmp(text("STORM_RANK", rank), rank) == 0;
};

template <class Function>
Function real(Function, const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}
#define REAL(name) real(&::name, #name)

constexpr const char* kKinds[] = {"open", "read", "write", "fsync", "rename", "truncate", "allocate", "mkdir"};
constexpr size_t kKindCount = std::size(kKinds);

// Of the calls of a kind in this folder.
long number_of_call(size_t kind, const Plan& plan) {
  static std::atomic<long> calls[kKindCount] = {};
  const long number = ++calls[kind];
  if (*plan.count == '\0') return number;
  char path[PATH_MAX], digits[32];
  snprintf(path, sizeof path, "%s%s.%s", plan.count, plan.rank, kKinds[kind]);
  const int length = snprintf(digits, sizeof digits, "%ld\n", number);
  const int fd = REAL(open)(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (fd >= 0 && REAL(pwrite)(fd, digits, static_cast<size_t>(length), 0) < 0) perror(path);
  if (fd >= 0) close(fd);
  return number;
}

enum class Fate { kNothing, kError, kShort };

// What becomes of one call; errno where it fails.
Fate fate_of(const char* kind, const char* path) {
  static const Plan plan;
  if (!plan.here || strncmp(path, plan.under, strlen(plan.under)) != 0) return Fate::kNothing;
  size_t index = 0;
  while (strcmp(kKinds[index], kind) != 0) ++index;
  const long number = number_of_call(index, plan);
  if (strcmp(kind, plan.kind) != 0) return Fate::kNothing;
  if (plan.first == 0 || number < plan.first || (plan.times > 0 && number >= plan.first + plan.times)) {
    return Fate::kNothing;
  }
  if (strcmp(plan.with, "short") == 0) return Fate::kShort;
  if (strcmp(plan.with, "slow") == 0) {
    usleep(200'000);
    return Fate::kNothing;
  }
  errno = strcmp(plan.with, "ENOSPC") == 0 ? ENOSPC : EIO;
  return Fate::kError;
}

struct PathOfFile {
  char path[PATH_MAX] = "";
  PathOfFile(int fd, const char* name = "") {
    if (*name == '/' || fd == AT_FDCWD) {
      snprintf(path, sizeof path, "%s", name);
      return;
    }
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return;
    if (*name != '\0') snprintf(path + length, sizeof path - static_cast<size_t>(length), "/%s", name);
  }
};

Fate fate_of(const char* kind, int fd, const char* name = "") {
  const int before = errno;
  const PathOfFile file(fd, name);
  errno = before;
  return fate_of(kind, file.path);
}

size_t half_of(int fd, size_t count) {
  if ((fcntl(fd, F_GETFL) & O_DIRECT) == 0) return count < 2 ? count : count / 2;
  const size_t sectors = count / kSector;
  return sectors < 2 ? count : sectors / 2 * kSector;
}

template <class Call>
ssize_t transfer(const char* kind, int fd, size_t count, Call call) {
  const Fate fate = fate_of(kind, fd);
  if (fate == Fate::kError) return -1;
  return call(fate == Fate::kShort ? half_of(fd, count) : count);
}

mode_t mode_of(int flags, va_list arguments) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
}

}  // namespace

extern "C" {

#define WITH_MODE(flags)            \
  mode_t mode = 0;                  \
  va_list arguments;                \
  va_start(arguments, flags);       \
  mode = mode_of(flags, arguments); \
  va_end(arguments)

int openat(int folder, const char* path, int flags, ...) {
  WITH_MODE(flags);
  return fate_of("open", folder, path) == Fate::kError ? -1 : REAL(openat)(folder, path, flags, mode);
}
int openat64(int folder, const char* path, int flags, ...) {
  WITH_MODE(flags);
  return openat(folder, path, flags, mode);
}
int open(const char* path, int flags, ...) {
  WITH_MODE(flags);
  return fate_of("open", path) == Fate::kError ? -1 : REAL(open)(path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  WITH_MODE(flags);
  return open(path, flags, mode);
}

FILE* fopen(const char* path, const char* mode) {
  return fate_of("open", path) == Fate::kError ? nullptr : REAL(fopen)(path, mode);
}
FILE* fopen64(const char* path, const char* mode) { return fopen(path, mode); }

ssize_t read(int fd, void* to, size_t count) {
  return transfer("read", fd, count, [&](size_t n) { return REAL(read)(fd, to, n); });
}
ssize_t pread(int fd, void* to, size_t count, off_t at) {
  return transfer("read", fd, count, [&](size_t n) { return REAL(pread)(fd, to, n, at); });
}
ssize_t pread64(int fd, void* to, size_t count, off_t at) { return pread(fd, to, count, at); }
ssize_t write(int fd, const void* from, size_t count) {
  return transfer("write", fd, count, [&](size_t n) { return REAL(write)(fd, from, n); });
}
ssize_t pwrite(int fd, const void* from, size_t count, off_t at) {
  return transfer("write", fd, count, [&](size_t n) { return REAL(pwrite)(fd, from, n, at); });
}
ssize_t pwrite64(int fd, const void* from, size_t count, off_t at) { return pwrite(fd, from, count, at); }
ssize_t readv(int fd, const iovec* parts, int count) {
  return fate_of("read", fd) == Fate::kError ? -1 : REAL(readv)(fd, parts, count);
}
ssize_t writev(int fd, const iovec* parts, int count) {
  return fate_of("write", fd) == Fate::kError ? -1 : REAL(writev)(fd, parts, count);
}

int fsync(int fd) { return fate_of("fsync", fd) == Fate::kError ? -1 : REAL(fsync)(fd); }
int fdatasync(int fd) { return fate_of("fsync", fd) == Fate::kError ? -1 : REAL(fdatasync)(fd); }
int ftruncate(int fd, off_t bytes) noexcept {
  return fate_of("truncate", fd) == Fate::kError ? -1 : REAL(ftruncate)(fd, bytes);
}
int ftruncate64(int fd, off_t bytes) noexcept { return ftruncate(fd, bytes); }
int posix_fallocate(int fd, off_t from, off_t bytes) {
  return fate_of("allocate", fd) == Fate::kError ? errno : REAL(posix_fallocate)(fd, from, bytes);
}
int posix_fallocate64(int fd, off_t from, off_t bytes) { return posix_fallocate(fd, from, bytes); }

int rename(const char* from, const char* to) noexcept {
  return fate_of("rename", to) == Fate::kError ? -1 : REAL(rename)(from, to);
}
int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) noexcept {
  if (fate_of("rename", to_folder, to) == Fate::kError) return -1;
  return REAL(renameat2)(from_folder, from, to_folder, to, flags);
}
int mkdir(const char* path, mode_t mode) noexcept {
  return fate_of("mkdir", path) == Fate::kError ? -1 : REAL(mkdir)(path, mode);
}

}  // extern "C"
