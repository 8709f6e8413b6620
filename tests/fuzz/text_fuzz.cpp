#include "tessera/data/reader.h"
#include "tests/fuzz/target.h"

namespace tessera::fuzz::text_fuzz {

TESSERA_FUZZ_TARGET(text) {
  const TemporaryFolder folder;
  data::read_texts(write(folder, "rows.txt", bytes), "text");
}

}  // namespace tessera::fuzz::text_fuzz
