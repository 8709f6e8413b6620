#include "tessera/monitor/patient_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <utility>

#include "tessera/base/atomic_file.h"
#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/input_file.h"
#include "tessera/base/log.h"

namespace tessera::monitor {
namespace {

constexpr size_t kMostWaiting = 16 << 20;  // bytes, some 60,000 steps

}  // namespace

PatientFile::PatientFile(std::filesystem::path path, const std::string& begins) : path_(std::move(path)) {
  write_file_atomically(path_, begins);
  file_ = UniqueFd(open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  if (!file_.open()) machine_refused("the file cannot be written", errno, path_);
}

PatientFile::~PatientFile() {
  if (write_waiting() && lost_ == 0) return;
  log_warning("{} lacks {}: there was no room for them", path_.string(), count_of(lost_ + waiting_records_, "line"));
}

void PatientFile::append(const std::string& record) {
  if (waiting_.size() + record.size() < kMostWaiting) {
    waiting_ += record;
    ++waiting_records_;
  } else {
    ++lost_;
  }
  const bool written = write_waiting();
  if (refused_ == !written) return;
  refused_ = !written;
  if (written) {
    log_info("{} is written again", path_.string());
  } else {
    log_warning("{} cannot be written: {}; its lines wait for room, and training goes on", path_.string(),
                errno_text(errno));
  }
}

std::string lines_that_stay(const std::filesystem::path& path, const std::function<bool(const std::string&)>& stays) {
  if (!std::filesystem::exists(path)) return "";
  std::ifstream file = open_input_file(path);
  std::string kept, line;
  while (std::getline(file, line)) {
    if (stays(line)) kept += line + "\n";
  }
  require_read_whole(file, path);
  return kept;
}

void make_folder(const std::filesystem::path& folder) {
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  if (failed) machine_refused("the folder cannot be created", failed.value(), folder);
}

// False, and errno, where something is left.
bool PatientFile::write_waiting() {
  while (!waiting_.empty()) {
    const ssize_t written = write(file_.get(), waiting_.data(), waiting_.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    waiting_.erase(0, static_cast<size_t>(written));
  }
  waiting_records_ = 0;
  return true;
}

}  // namespace tessera::monitor
