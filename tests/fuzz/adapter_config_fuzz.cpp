#include "tessera/models/adapters.h"
#include "tests/fuzz/target.h"

namespace tessera::fuzz::adapter_config_fuzz {

TESSERA_FUZZ_TARGET(adapter_config) {
  const TemporaryFolder folder;
  write(folder, "adapter_config.json", bytes);
  models::read_peft_folder(folder.path());
}

}  // namespace tessera::fuzz::adapter_config_fuzz
