#include "tessera/data/reader.h"
#include "tests/fuzz/target.h"

namespace tessera::fuzz::jsonl_fuzz {

TESSERA_FUZZ_TARGET(jsonl) {
  const TemporaryFolder folder;
  data::read_texts(write(folder, "rows.jsonl", bytes), "text");
}

}  // namespace tessera::fuzz::jsonl_fuzz
