// Writes a file from beginning to end, bypassing the page cache (O_DIRECT where the file system can), checksums as it
// goes, and flushes it to the disk.
//
//   FileOutput out(path, bytes);        // reserves the space: a full disk is found out here
//   out.append(header…); out.append(tensor…);
//   const FileSum sum = out.finish();
//
// Errors: ErrorKind::kMachine with errno and path. Without finish() the file is left as far as it was written.
#pragma once

#include <array>
#include <string>

#include "tessera/storage/aligned_buffer.h"
#include "tessera/storage/file_sum.h"
#include "tessera/storage/io_queue.h"

namespace tessera::storage {

class FileOutput {
 public:
  // `expected_bytes`: how long the file will be, as far as known.
  explicit FileOutput(const std::string& path, uint64_t expected_bytes = 0);
  ~FileOutput();
  FileOutput(const FileOutput&) = delete;
  FileOutput& operator=(const FileOutput&) = delete;

  // Copies the bytes.
  void append(const void* bytes, size_t count);

  // Writes from page-aligned memory that stays as it is until finish(). Only as the first and only part of a file.
  void append_in_place(const char* bytes, size_t count);

  FileSum finish();

 private:
  static constexpr size_t kBuffers = 4;

  void write_block(const char* bytes, size_t count, size_t tag);
  void claim_buffer(size_t number);

  IoFile file_;
  FileSum sum_;
  std::array<AlignedBuffer, kBuffers> buffers_;
  std::array<bool, kBuffers> busy_{};
  size_t current_ = 0;
  size_t filled_ = 0;                               // bytes of the current buffer
  uint64_t written_ = 0;                            // bytes handed to the queue
  IoQueue queue_{{.block_bytes = kSumBlockBytes}};  // goes first: it waits for the buffers
};

}  // namespace tessera::storage
