// A file without a name in a folder: nothing of it stays when it is closed, however the process ends. Read and written
// past the page cache where the file system can (O_DIRECT). For messages its path is the folder.
//
// Errors: ErrorKind::kMachine with errno and folder, when the folder is missing or refuses files. Memory and
// offsets as in io_queue.h.
#pragma once

#include <cstdint>
#include <string>

#include "tessera/storage/io_queue.h"

namespace tessera::storage {

class ScratchFile {
 public:
  explicit ScratchFile(const std::string& folder);
  ~ScratchFile();
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  const IoFile& file() const { return file_; }
  bool is_direct() const { return direct_; }

  // Makes the file this long; a full disk is found out here.
  void reserve(uint64_t bytes);

 private:
  IoFile file_;
  bool direct_ = false;
};

}  // namespace tessera::storage
