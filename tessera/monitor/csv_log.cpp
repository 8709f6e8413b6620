#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <memory>

#include "tessera/monitor/patient_file.h"
#include "tessera/monitor/scalar_log.h"

namespace tessera::monitor {
namespace {

namespace fs = std::filesystem;

// A row, which the header is not, of a step up to that one.
bool is_row_up_to(const std::string& line, int64_t last) {
  int64_t at = 0;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), at);
  return error == std::errc() && end != line.data() + line.size() && *end == ',' && at <= last;
}

class CsvLog final : public ScalarLog {
 public:
  CsvLog(fs::path folder, int64_t last) : folder_(std::move(folder)), last_(last) { make_folder(folder_); }

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
    const std::string rows = lines_that_stay(path, [&](const std::string& line) { return is_row_up_to(line, last_); });
    file = std::make_unique<PatientFile>(path, fmt::format("step,{}\n", name.substr(name.rfind('/') + 1)) + rows);
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
