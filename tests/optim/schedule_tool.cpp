// For tests/optim/test_schedules.py: `schedule_tool TYPE PARAMS_JSON LR STEPS` prints the learning rate and beta1 (0
// where the schedule leaves it) of each optimizer step, one step a line.
#include <cstdio>
#include <cstdlib>

#include "tessera/optim/schedule.h"

int main(int argc, char** argv) {
  using namespace tessera;
  if (argc != 5) return 2;
  const auto schedule =
      optim::schedules().find(argv[1], "").make({.type = argv[1], .params = nlohmann::json::parse(argv[2])});
  const optim::ParamGroup group{.lr = std::atof(argv[3])};
  for (int64_t step = 1; step <= std::atoll(argv[4]); ++step) {
    const optim::ScheduledValues values = schedule->at(step - 2, group, 0);
    std::printf("%.17g %.17g\n", values.lr, values.beta1.value_or(0));
  }
}
