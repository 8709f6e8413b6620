#include "tessera/config/hjson.h"
#include "tests/fuzz/target.h"

namespace tessera::fuzz::hjson_fuzz {

TESSERA_FUZZ_TARGET(hjson) { config::parse_hjson(bytes, "input.json"); }

}  // namespace tessera::fuzz::hjson_fuzz
