#include "tessera/config/run_file.h"
#include "tests/fuzz/target.h"

namespace tessera::fuzz::run_file_fuzz {

TESSERA_FUZZ_TARGET(run_file) {
  // run.yaml, and the ds_config beside it.
  const TemporaryFolder folder;
  const auto parts = parts_of(bytes, 2);
  write(folder, "ds.json", parts[1]);
  const auto run = config::load_run_file(write(folder, "run.yaml", parts[0]), {});
  config::resolve_ds_config(run, {.data_parallel_size = 2});
}

}  // namespace tessera::fuzz::run_file_fuzz
