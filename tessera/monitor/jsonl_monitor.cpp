// <output>/metrics.jsonl: one JSON object a line, for each optimizer step and for each evaluation (the key "eval_loss"
// tells them apart). Numbers are written so that reading them back gives the same bits. Each line is handed to the
// system when its call returns; a run that is killed loses none of them. Where the disk is full they wait in memory for
// room, as metrics are no reason to stop training.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "tessera/base/atomic_file.h"
#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/input_file.h"
#include "tessera/base/json_text.h"
#include "tessera/base/json_value.h"
#include "tessera/base/log.h"
#include "tessera/base/unique_fd.h"
#include "tessera/monitor/monitors.h"

namespace tessera::monitor {
namespace {

constexpr size_t kMostWaiting = 16 << 20;  // bytes of lines, some 60,000 steps

// Nothing where the line is none of ours: a power cut may leave anything.
std::optional<int64_t> step_of(const std::string& line) {
  try {
    return whole_of<int64_t>(parse_json(line, {.where = "metrics.jsonl"}).at("step"));
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

std::string lines_up_to(const std::filesystem::path& path, int64_t last_step) {
  if (!std::filesystem::exists(path)) return "";
  std::ifstream file = open_input_file(path);
  std::string kept, line;
  while (std::getline(file, line)) {
    const auto step = step_of(line);
    if (step && *step <= last_step) kept += line + "\n";
  }
  require_read_whole(file, path);  // what is not read now would be gone
  return kept;
}

class JsonlMonitor final : public Monitor {
 public:
  // Keeps the lines of steps up to the resumed one.
  explicit JsonlMonitor(const MonitorOptions& options);
  ~JsonlMonitor() override;
  JsonlMonitor(const JsonlMonitor&) = delete;
  JsonlMonitor& operator=(const JsonlMonitor&) = delete;

  void step(const StepMetrics& metrics) override;
  void evaluation(const EvaluationMetrics& metrics) override;
  std::string place() const override { return path_.string(); }

 private:
  void write_line(const std::string& line);
  bool write_waiting();

  std::filesystem::path path_;
  UniqueFd file_;
  std::string waiting_;  // for room
  bool refused_ = false;
  int64_t lost_ = 0;  // lines for which memory was too short as well
};

JsonlMonitor::JsonlMonitor(const MonitorOptions& options) : path_(options.output / "metrics.jsonl") {
  write_file_atomically(path_, options.resumed_step > 0 ? lines_up_to(path_, options.resumed_step) : "");
  file_ = UniqueFd(open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  if (!file_.open()) machine_refused("the file cannot be written", errno, path_);
}

JsonlMonitor::~JsonlMonitor() {
  if (write_waiting() && lost_ == 0) return;
  lost_ += std::count(waiting_.begin(), waiting_.end(), '\n');
  log_warning("{} lacks {}: there was no room for them", path_.string(), count_of(lost_, "line"));
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
  for (const auto& [name, value] : metrics.others) line["eval_" + name] = value;
  line["eval_samples"] = metrics.samples;
  line["eval_seconds"] = metrics.seconds;
  write_line(line.dump());
}

void JsonlMonitor::write_line(const std::string& line) {
  if (waiting_.size() + line.size() < kMostWaiting) {
    waiting_ += line + "\n";
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

// False, and errno, where something is left.
bool JsonlMonitor::write_waiting() {
  while (!waiting_.empty()) {
    const ssize_t written = write(file_.get(), waiting_.data(), waiting_.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    waiting_.erase(0, static_cast<size_t>(written));
  }
  return true;
}

}  // namespace

std::unique_ptr<Monitor> make_jsonl_monitor(const MonitorOptions& options) {
  return std::make_unique<JsonlMonitor>(options);
}

}  // namespace tessera::monitor
