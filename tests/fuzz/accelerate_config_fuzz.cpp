#include "tessera/launch/accelerate_config.h"
#include "tests/fuzz/target.h"

namespace tessera::fuzz::accelerate_config_fuzz {

TESSERA_FUZZ_TARGET(accelerate_config) {
  const TemporaryFolder folder;
  launch::load_accelerate_config(write(folder, bytes.starts_with('{') ? "run.json" : "run.yaml", bytes));
}

}  // namespace tessera::fuzz::accelerate_config_fuzz
