#include "tessera/storage/checked_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "tessera/base/error.h"

namespace tessera::storage {
namespace {

constexpr int kBlocksAhead = 8;

}  // namespace

CheckedFile::CheckedFile(const std::string& path, FileSum sum)
    : file_{open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC), path}, sum_(std::move(sum)) {
  if (file_.fd < 0) {
    throw Error(ErrorKind::kData, {"the file cannot be opened: " + errno_text(errno), path, "check the path"});
  }
  struct stat info {};
  fstat(file_.fd, &info);
  const auto bytes = static_cast<uint64_t>(info.st_size);
  if (sum_.blocks.empty()) sum_.bytes = bytes;
  if (bytes == sum_.bytes) return;
  close(file_.fd);
  throw Error(ErrorKind::kData, {fmt::format("the file has {} bytes instead of {}", bytes, sum_.bytes), path,
                                 "use another copy of it, or an earlier checkpoint"});
}

CheckedFile::~CheckedFile() {
  queue_.drain();
  close(file_.fd);
}

size_t CheckedFile::bytes_of(uint64_t block) const {
  return std::min(kSumBlockBytes, sum_.bytes - block * kSumBlockBytes);
}

void CheckedFile::check(uint64_t block, const void* bytes) const {
  if (sum_.blocks.empty() || hash_of(bytes, bytes_of(block)) == sum_.blocks.at(block)) return;
  throw Error(ErrorKind::kData,
              {fmt::format("the file is damaged: what lies between byte {} and byte {} does not match its checksums",
                           block * kSumBlockBytes, block * kSumBlockBytes + bytes_of(block)),
               file_.path, "use another copy of it, or an earlier checkpoint"});
}

// What is read first is the beginning of what is read on, so each jump begins a new stretch.
void CheckedFile::read_ahead_of(uint64_t offset) {
  constexpr uint64_t kAhead = 64U << 20;
  if (offset < ahead_begin_ || offset > ahead_end_) ahead_begin_ = ahead_end_ = offset;
  const uint64_t wanted = std::min(offset + kAhead, sum_.bytes);
  if (wanted < ahead_end_ + kAhead / 4 && wanted < sum_.bytes) return;
  if (wanted <= ahead_end_) return;
  posix_fadvise(file_.fd, static_cast<off_t>(ahead_end_), static_cast<off_t>(wanted - ahead_end_), POSIX_FADV_WILLNEED);
  ahead_end_ = wanted;
}

const char* CheckedFile::kept(uint64_t block) {
  for (const Kept& each : kept_) {
    if (each.block == block) return each.bytes.data();
  }
  Kept& place = kept_[oldest_];
  oldest_ = (oldest_ + 1) % kept_.size();
  place.block = UINT64_MAX;
  place.bytes.reserve(kSumBlockBytes);
  queue_.start_read(file_, place.bytes.data(), bytes_of(block), block * kSumBlockBytes);
  queue_.wait_all();
  check(block, place.bytes.data());
  place.block = block;
  return place.bytes.data();
}

void CheckedFile::read(uint64_t offset, size_t bytes, void* into) {
  TESSERA_INVARIANT(offset + bytes <= sum_.bytes);
  read_ahead_of(offset);
  char* const to = static_cast<char*>(into);
  const uint64_t end = offset + bytes;
  std::vector<std::pair<uint64_t, char*>> whole;  // block, and where it goes
  for (uint64_t at = offset; at < end;) {
    const uint64_t block = at / kSumBlockBytes, begin = block * kSumBlockBytes;
    const uint64_t stop = std::min(end, begin + bytes_of(block));
    if (at == begin && stop == begin + bytes_of(block)) {
      whole.emplace_back(block, to + (at - offset));
    } else {
      std::memcpy(to + (at - offset), kept(block) + (at - begin), stop - at);
    }
    at = stop;
  }
  size_t started = 0;
  for (size_t ended = 0; ended < whole.size(); ++ended) {
    while (started < whole.size() && queue_.in_flight() < kBlocksAhead) {
      const auto& [block, place] = whole[started];
      queue_.start_read(file_, place, bytes_of(block), block * kSumBlockBytes, started);
      ++started;
    }
    const auto& [block, place] = whole[queue_.wait_one()];
    check(block, place);
  }
}

void CheckedFile::check_all() {
  AlignedBuffer buffer(kBlocksAhead * kSumBlockBytes);
  for (uint64_t at = 0; at < sum_.bytes; at += buffer.capacity()) {
    read(at, std::min<uint64_t>(buffer.capacity(), sum_.bytes - at), buffer.data());
  }
}

}  // namespace tessera::storage
