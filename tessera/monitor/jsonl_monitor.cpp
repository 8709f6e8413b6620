// <output>/metrics.jsonl: one JSON object a line, for each optimizer step and for each evaluation (the key "eval_loss"
// tells them apart). Numbers are written so that reading them back gives the same bits. A run that is killed loses no
// line (patient_file.h).
#include <nlohmann/json.hpp>
#include <optional>

#include "tessera/base/json_text.h"
#include "tessera/base/json_value.h"
#include "tessera/monitor/monitors.h"
#include "tessera/monitor/patient_file.h"

namespace tessera::monitor {
namespace {

// Nothing where the line is none of ours: a power cut may leave anything.
std::optional<int64_t> step_of(const std::string& line) {
  try {
    return whole_of<int64_t>(parse_json(line, {.where = "metrics.jsonl"}).at("step"));
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

std::string lines_up_to(const std::filesystem::path& path, int64_t last_step) {
  return lines_that_stay(path, [last_step](const std::string& line) {
    const auto step = step_of(line);
    return step && *step <= last_step;
  });
}

class JsonlMonitor final : public Monitor {
 public:
  // Keeps the lines of steps up to the resumed one.
  explicit JsonlMonitor(const MonitorOptions& options)
      : JsonlMonitor(options.output / "metrics.jsonl", options.resumed_step) {}

  void step(const StepMetrics& metrics) override;
  void evaluation(const EvaluationMetrics& metrics) override;
  std::string place() const override { return file_.path().string(); }

 private:
  JsonlMonitor(const std::filesystem::path& path, int64_t resumed_step)
      : file_(path, resumed_step > 0 ? lines_up_to(path, resumed_step) : "") {}

  PatientFile file_;
};

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
  file_.append(line.dump() + "\n");
}

void JsonlMonitor::evaluation(const EvaluationMetrics& metrics) {
  nlohmann::ordered_json line;
  line["step"] = metrics.step;
  line["eval_loss"] = metrics.loss;
  for (const auto& [name, value] : metrics.others) line["eval_" + name] = value;
  line["eval_samples"] = metrics.samples;
  line["eval_seconds"] = metrics.seconds;
  file_.append(line.dump() + "\n");
}

}  // namespace

std::unique_ptr<Monitor> make_jsonl_monitor(const MonitorOptions& options) {
  return std::make_unique<JsonlMonitor>(options);
}

}  // namespace tessera::monitor
