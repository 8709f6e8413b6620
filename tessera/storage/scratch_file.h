// An unnamed file in a folder: nothing of it remains when it is closed, however the process ends. Read and written
// bypassing the page cache where the file system can (O_DIRECT); memory and offsets as in io_queue.h. Errors:
// ErrorKind::kMachine with errno and folder, when the folder is missing or refuses files.
#pragma once

#include <cstdint>
#include <string>

#include "tessera/storage/io_queue.h"

namespace tessera::storage {

class ScratchFile {
 public:
  // `named_by`: the option or key that gave the folder, for messages.
  explicit ScratchFile(const std::string& folder, const std::string& named_by = "");
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
