#include "tessera/data/reader.h"
#include "tests/fuzz/target.h"

namespace tessera::fuzz::csv_fuzz {

TESSERA_FUZZ_TARGET(csv) {
  const TemporaryFolder folder;
  data::read_texts(write(folder, "rows.csv", bytes), "text");
}

}  // namespace tessera::fuzz::csv_fuzz
