// Who hears of a run's steps and evaluations: writers of files, and whatever else shows how training goes. monitors.h
// has the table. Rank 0 alone has monitors; one thread at a time calls them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tessera::monitor {

struct StepMetrics {
  int64_t step = 0;      // optimizer steps, from 1
  double epoch = 0;      // epochs finished, the present one in part
  double loss = 0;       // mean over the targets of the global batch
  double grad_norm = 0;  // global L2 norm before clipping; not finite where the step was skipped
  double lr = 0;         // with which this step was taken
  double loss_scale = 1;
  int64_t samples = 0;  // seen so far, all ranks
  int64_t tokens = 0;   // seen so far, all ranks, padding left out
  double step_seconds = 0;
  int64_t model_state_bytes = 0;  // of rank 0, between steps
  int64_t peak_memory_bytes = 0;  // of rank 0's process since its start
};

struct EvaluationMetrics {
  int64_t step = 0;     // optimizer steps done before it
  double loss = 0;      // mean over the targets
  int64_t samples = 0;  // that were looked at
  double seconds = 0;
  std::vector<std::pair<std::string, double>> others = {};  // what the task reports beside the loss: "accuracy", …
};

struct MonitorOptions {
  std::filesystem::path output;  // the run's folder, which is there
  int64_t resumed_step = 0;  // steps that the run has behind it: what was told of later ones is void; 0: starts anew
};

class Monitor {
 public:
  virtual ~Monitor() = default;

  // What was told is safe from the end of the process when they return. Where that fails, it is a warning.
  virtual void step(const StepMetrics& metrics) = 0;
  virtual void evaluation(const EvaluationMetrics& metrics) = 0;

  virtual std::string place() const = 0;  // where to look, for the report at the end of a run
};

using MakeMonitor = std::unique_ptr<Monitor> (*)(const MonitorOptions& options);

// Adds a monitor of one's own to those that a run file's `monitors` can name: at the start of a program, before
// anything is looked up. `summary`: one line. ErrorKind::kUsage where the name is taken.
void add_monitor(const char* name, const char* summary, MakeMonitor make);

}  // namespace tessera::monitor
