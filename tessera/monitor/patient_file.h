// A file that metrics are appended to. What was appended is with the system when append() returns; where the disk is
// full, records wait in memory for room, as metrics are no reason to stop training. One thread at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
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

// What such a file of an earlier run has that stays: the lines for which `stays` is true, each with its end; nothing
// where there is no file. ErrorKind::kMachine where it cannot be read whole, as what is not read would be lost.
std::string lines_that_stay(const std::filesystem::path& path, const std::function<bool(const std::string&)>& stays);

// ErrorKind::kMachine where it cannot be made.
void make_folder(const std::filesystem::path& folder);

}  // namespace tessera::monitor
