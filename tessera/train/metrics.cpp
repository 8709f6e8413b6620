#include "tessera/train/metrics.h"

#include <fmt/format.h>

#include <cerrno>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/host_memory.h"
#include "tessera/storage/atomic_dir.h"

namespace tessera::train {
namespace {

std::string lines_up_to(const std::filesystem::path& path, int64_t last_step) {
  std::ifstream file(path);
  std::string kept, line;
  while (std::getline(file, line)) {
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (json.is_object() && json.value("step", int64_t{0}) <= last_step) kept += line + "\n";
  }
  return kept;
}

}  // namespace

MetricsFile::MetricsFile(const std::filesystem::path& path, int64_t resumed_step) : path_(path) {
  storage::write_file_atomically(path, resumed_step > 0 ? lines_up_to(path, resumed_step) : "");
  file_ = std::fopen(path.c_str(), "a");
  if (file_ == nullptr) {
    throw Error(ErrorKind::kMachine, {"the file cannot be written: " + errno_text(errno), path.string(), ""});
  }
}

MetricsFile::~MetricsFile() {
  if (file_ != nullptr) std::fclose(file_);
}

void MetricsFile::append(const StepMetrics& metrics) {
  nlohmann::ordered_json line;
  line["step"] = metrics.step;
  line["epoch"] = metrics.epoch;
  line["loss"] = metrics.loss;
  line["grad_norm"] = metrics.grad_norm;
  line["lr"] = metrics.lr;
  line["loss_scale"] = metrics.loss_scale;
  line["samples"] = metrics.samples;
  line["tokens"] = metrics.tokens;
  line["step_seconds"] = metrics.step_seconds;
  line["model_state_bytes"] = metrics.model_state_bytes;
  line["peak_memory_bytes"] = metrics.peak_memory_bytes;
  write_line(line.dump());
}

void MetricsFile::append(const EvaluationMetrics& metrics) {
  nlohmann::ordered_json line;
  line["step"] = metrics.step;
  line["eval_loss"] = metrics.loss;
  line["eval_samples"] = metrics.samples;
  line["eval_seconds"] = metrics.seconds;
  write_line(line.dump());
}

void MetricsFile::write_line(const std::string& line) {
  const std::string text = line + "\n";
  if (std::fputs(text.c_str(), file_) < 0 || std::fflush(file_) != 0) {
    throw Error(ErrorKind::kMachine, {"writing failed: " + errno_text(errno), path_.string(), "free some space"});
  }
}

int64_t peak_memory_bytes() { return static_cast<int64_t>(number_after("/proc/self/status", "VmHWM:") * 1024); }

}  // namespace tessera::train
