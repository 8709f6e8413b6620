#include <sstream>

#include "tessera/config/run_file.h"
#include "tests/fuzz/target.h"

namespace tessera::fuzz::overrides_fuzz {

TESSERA_FUZZ_TARGET(overrides) {
  // --set, once for each line, over a run file that is right.
  constexpr std::string_view kRunFile =
      "model: {path: m}\ntask: mlm\ndata: {train: [a.jsonl]}\ndeepspeed: {train_batch_size: 8}\n";
  const TemporaryFolder folder;
  std::vector<std::string> overrides;
  std::istringstream lines{std::string(bytes)};
  for (std::string line; std::getline(lines, line);) overrides.push_back(line);
  const auto run = config::load_run_file(write(folder, "run.yaml", kRunFile), overrides);
  config::resolve_ds_config(run, {.data_parallel_size = 2});
}

}  // namespace tessera::fuzz::overrides_fuzz
