#include <nlohmann/json.hpp>

#include "tessera/base/json_text.h"
#include "tests/fuzz/target.h"

namespace tessera::fuzz::json_fuzz {

TESSERA_FUZZ_TARGET(json) {
  // Strict JSON, as all files but configurations are read.
  parse_json(bytes, {.where = "input.json"});
}

}  // namespace tessera::fuzz::json_fuzz
