// <output>/tally.txt: "step 3 0x1.8p+1" after each step, "evaluation 3 0x1.8p+1" after each evaluation.
#include <cstdio>
#include <fstream>

#include "tests/train/toy/parts.h"

namespace tessera::toy {
namespace {

class Tally final : public monitor::Monitor {
 public:
  explicit Tally(const monitor::MonitorOptions& options) : path_(options.output / "tally.txt") {
    file_.open(path_, options.resumed_step > 0 ? std::ios::app : std::ios::trunc);
  }

  void step(const monitor::StepMetrics& metrics) override { write("step", metrics.step, metrics.loss); }
  void evaluation(const monitor::EvaluationMetrics& metrics) override {
    write("evaluation", metrics.step, metrics.loss);
  }
  std::string place() const override { return path_.string(); }

 private:
  void write(const char* what, int64_t step, double loss) {
    file_ << what << ' ' << step << ' ' << std::hexfloat << loss << std::endl;
  }

  std::filesystem::path path_;
  std::ofstream file_;
};

}  // namespace

std::unique_ptr<monitor::Monitor> make_tally(const monitor::MonitorOptions& options) {
  return std::make_unique<Tally>(options);
}

}  // namespace tessera::toy
