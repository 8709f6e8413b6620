// The monitors whose numbers go by name into a ScalarLog in a folder of the output: csv and tensorboard.
#include <fmt/format.h>

#include "tessera/monitor/monitors.h"
#include "tessera/monitor/scalar_log.h"

namespace tessera::monitor {
namespace {

class ScalarMonitor final : public Monitor {
 public:
  explicit ScalarMonitor(std::unique_ptr<ScalarLog> log) : log_(std::move(log)) {}

  void step(const StepMetrics& metrics) override {
    const auto add = [&](const char* name, double value) { log_->add(name, value, metrics.step); };
    add("train/loss", metrics.loss);
    add("train/grad_norm", metrics.grad_norm);
    add("train/lr", metrics.lr);
    add("train/loss_scale", metrics.loss_scale);
    add("train/epoch", metrics.epoch);
    add("train/tokens", static_cast<double>(metrics.tokens));
    add("train/step_seconds", metrics.step_seconds);
    add("train/peak_memory_bytes", static_cast<double>(metrics.peak_memory_bytes));
  }

  void evaluation(const EvaluationMetrics& metrics) override {
    log_->add("eval/loss", metrics.loss, metrics.step);
    for (const auto& [name, value] : metrics.others) log_->add("eval/" + name, value, metrics.step);
  }

  std::string place() const override { return log_->place(); }

 private:
  std::unique_ptr<ScalarLog> log_;
};

}  // namespace

std::unique_ptr<Monitor> make_csv_monitor(const MonitorOptions& options) {
  return std::make_unique<ScalarMonitor>(make_csv_log(options.output / "csv", options.resumed_step));
}

std::unique_ptr<Monitor> make_tensorboard_monitor(const MonitorOptions& options) {
  return std::make_unique<ScalarMonitor>(make_tensorboard_log(options.output / "tensorboard", options.resumed_step));
}

}  // namespace tessera::monitor
