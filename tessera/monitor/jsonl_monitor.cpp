// <output>/metrics.jsonl: one JSON object a line, for each optimizer step and for each evaluation (the key "eval_loss"
// tells them apart). Numbers are written so that reading them back gives the same bits. Each line is handed to the
// system when its call returns; a run that is killed loses none of them.
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tessera/base/atomic_file.h"
#include "tessera/base/error.h"
#include "tessera/monitor/monitors.h"

namespace tessera::monitor {
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

class JsonlMonitor final : public Monitor {
 public:
  // Keeps the lines of steps up to the resumed one.
  explicit JsonlMonitor(const MonitorOptions& options);
  ~JsonlMonitor() override { std::fclose(file_); }
  JsonlMonitor(const JsonlMonitor&) = delete;
  JsonlMonitor& operator=(const JsonlMonitor&) = delete;

  void step(const StepMetrics& metrics) override;
  void evaluation(const EvaluationMetrics& metrics) override;
  std::string place() const override { return path_.string(); }

 private:
  void write_line(const std::string& line);

  std::filesystem::path path_;
  std::FILE* file_;
};

JsonlMonitor::JsonlMonitor(const MonitorOptions& options) : path_(options.output / "metrics.jsonl") {
  write_file_atomically(path_, options.resumed_step > 0 ? lines_up_to(path_, options.resumed_step) : "");
  file_ = std::fopen(path_.c_str(), "a");
  if (file_ == nullptr) {
    throw Error(ErrorKind::kMachine, {"the file cannot be written: " + errno_text(errno), path_.string(), ""});
  }
}

void JsonlMonitor::step(const StepMetrics& metrics) {
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

void JsonlMonitor::evaluation(const EvaluationMetrics& metrics) {
  nlohmann::ordered_json line;
  line["step"] = metrics.step;
  line["eval_loss"] = metrics.loss;
  line["eval_samples"] = metrics.samples;
  line["eval_seconds"] = metrics.seconds;
  write_line(line.dump());
}

void JsonlMonitor::write_line(const std::string& line) {
  const std::string text = line + "\n";
  if (std::fputs(text.c_str(), file_) < 0 || std::fflush(file_) != 0) {
    throw Error(ErrorKind::kMachine, {"writing failed: " + errno_text(errno), path_.string(), "free some space"});
  }
}

}  // namespace

std::unique_ptr<Monitor> make_jsonl_monitor(const MonitorOptions& options) {
  return std::make_unique<JsonlMonitor>(options);
}

}  // namespace tessera::monitor
