// Byte ranges of a file, each block that they touch checked against its sum (file_sum.h). Whole blocks are read
// straight to where they are wanted; of the others the last two are kept. The kernel is asked to have what follows
// ready in its page cache. ErrorKind::kData names file and place of a block that is not what was written, of a file
// that is shorter than it was, or that cannot be opened. One thread at a time.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "tessera/storage/aligned_buffer.h"
#include "tessera/storage/file_sum.h"
#include "tessera/storage/io_queue.h"

namespace tessera::storage {

class CheckedFile {
 public:
  // A sum without blocks: nothing is checked.
  CheckedFile(const std::string& path, FileSum sum);
  ~CheckedFile();
  CheckedFile(const CheckedFile&) = delete;
  CheckedFile& operator=(const CheckedFile&) = delete;

  const std::string& path() const { return file_.path; }
  void read(uint64_t offset, size_t bytes, void* into);

  // Reads all of it.
  void check_all();

 private:
  struct Kept {
    AlignedBuffer bytes;
    uint64_t block = UINT64_MAX;
  };

  size_t bytes_of(uint64_t block) const;
  void check(uint64_t block, const void* bytes) const;
  void read_ahead_of(uint64_t offset);
  const char* kept(uint64_t block);

  IoFile file_;
  FileSum sum_;
  std::array<Kept, 2> kept_;
  size_t oldest_ = 0;
  uint64_t ahead_begin_ = 0, ahead_end_ = 0;  // the kernel was told that these bytes will be wanted
  IoQueue queue_{{.block_bytes = kSumBlockBytes}};
};

}  // namespace tessera::storage
