// <output>/metrics.jsonl: one JSON object a line, for each optimizer step and for each evaluation (the key "eval_loss"
// tells them apart). Numbers are written so that reading them back gives the same bits. Each line is on its way to the
// disk when append returns; a run that is killed loses none of them.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>

namespace tessera::train {

struct StepMetrics {
  int64_t step = 0;      // optimizer steps, from 1
  double epoch = 0;      // epochs finished, the present one in part
  double loss = 0;       // mean over the target tokens of the global batch
  double grad_norm = 0;  // global L2 norm before clipping
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
};

class MetricsFile {
 public:
  // Keeps the lines of steps up to `resumed_step` (0: starts anew). ErrorKind::kMachine when it cannot be written.
  MetricsFile(const std::filesystem::path& path, int64_t resumed_step);
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;

  void append(const StepMetrics& metrics);
  void append(const EvaluationMetrics& metrics);

 private:
  void write_line(const std::string& line);

  std::filesystem::path path_;
  std::FILE* file_ = nullptr;
};

// Largest resident size of this process so far, in bytes; 0 where the system does not tell.
int64_t peak_memory_bytes();

}  // namespace tessera::train
