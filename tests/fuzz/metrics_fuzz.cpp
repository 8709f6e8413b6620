#include "tessera/monitor/monitors.h"
#include "tests/fuzz/target.h"

namespace tessera::fuzz::metrics_fuzz {

TESSERA_FUZZ_TARGET(metrics) {
  // metrics.jsonl of a run that is resumed.
  const TemporaryFolder folder;
  write(folder, "metrics.jsonl", bytes);
  const auto monitors = monitor::start_monitors({"jsonl"}, {.output = folder.path(), .resumed_step = 2});
  monitors.front()->step({.step = 3});
}

}  // namespace tessera::fuzz::metrics_fuzz
