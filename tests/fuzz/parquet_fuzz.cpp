#include "tessera/data/reader.h"
#include "tests/fuzz/target.h"

namespace tessera::fuzz::parquet_fuzz {

TESSERA_FUZZ_TARGET(parquet, /*bytes_an_input_byte=*/1100) {
  const TemporaryFolder folder;
  data::read_texts(write(folder, "rows.parquet", bytes), "text");
}

}  // namespace tessera::fuzz::parquet_fuzz
