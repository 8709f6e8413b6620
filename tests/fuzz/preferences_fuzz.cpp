#include "tessera/data/preferences.h"
#include "tests/fuzz/target.h"

namespace tessera::fuzz::preferences_fuzz {

TESSERA_FUZZ_TARGET(preferences) {
  const TemporaryFolder folder;
  data::read_preferences(write(folder, "rows.jsonl", bytes));
}

}  // namespace tessera::fuzz::preferences_fuzz
