#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <map>
#include <memory>

#include "tessera/base/atomic_file.h"
#include "tessera/base/input_file.h"
#include "tessera/monitor/patient_file.h"
#include "tessera/monitor/scalar_log.h"

namespace tessera::monitor {
namespace {

namespace fs = std::filesystem;

// The rows up to it, behind the header.
std::string rows_up_to(const fs::path& path, int64_t last) {
  if (!fs::exists(path)) return "";
  std::ifstream file = open_input_file(path);
  std::string kept, line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    int64_t at = 0;
    const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), at);
    if (error == std::errc() && end != line.data() + line.size() && *end == ',' && at <= last) kept += line + "\n";
  }
  require_read_whole(file, path);
  return kept;
}

class CsvLog final : public ScalarLog {
 public:
  CsvLog(fs::path folder, int64_t last) : folder_(std::move(folder)), last_(last) {
    std::error_code failed;
    fs::create_directories(folder_, failed);
    if (failed) machine_refused("the folder cannot be created", failed.value(), folder_);
  }

  void add(const std::string& name, double value, int64_t at) override {
    file_of(name).append(fmt::format("{},{}\n", at, value));
  }

  std::string place() const override { return folder_.string(); }

 private:
  PatientFile& file_of(const std::string& name) {
    std::unique_ptr<PatientFile>& file = files_[name];
    if (file) return *file;
    std::string base = name;
    std::replace_if(
        base.begin(), base.end(), [](char letter) { return letter == '/' || letter == ' '; }, '_');
    const fs::path path = folder_ / (base + ".csv");
    file = std::make_unique<PatientFile>(
        path, fmt::format("step,{}\n", name.substr(name.rfind('/') + 1)) + rows_up_to(path, last_));
    return *file;
  }

  fs::path folder_;
  int64_t last_;
  std::map<std::string, std::unique_ptr<PatientFile>> files_;
};

}  // namespace

std::unique_ptr<ScalarLog> make_csv_log(const fs::path& folder, int64_t last) {
  return std::make_unique<CsvLog>(folder, last);
}

}  // namespace tessera::monitor
