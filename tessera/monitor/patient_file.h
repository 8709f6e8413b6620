// A file that metrics are appended to. What was appended is with the system when append() returns; where the disk is
// full, records wait in memory for room, as metrics are no reason to stop training. One thread at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "tessera/base/unique_fd.h"

namespace tessera::monitor {

class PatientFile {
 public:
  // `begins`: what the file holds then, in place of what it held. ErrorKind::kMachine where it cannot be written.
  PatientFile(std::filesystem::path path, const std::string& begins);
  ~PatientFile();  // tells how many records are lost, if any are
  PatientFile(const PatientFile&) = delete;
  PatientFile& operator=(const PatientFile&) = delete;

  void append(const std::string& record);
  const std::filesystem::path& path() const { return path_; }

 private:
  bool write_waiting();

  std::filesystem::path path_;
  UniqueFd file_;
  std::string waiting_;
  int64_t waiting_records_ = 0;
  bool refused_ = false;
  int64_t lost_ = 0;  // records for which memory was too short as well
};

}  // namespace tessera::monitor
