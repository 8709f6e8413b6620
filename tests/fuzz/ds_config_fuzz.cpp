#include "tessera/base/error.h"
#include "tessera/config/ds_config.h"
#include "tessera/config/hjson.h"
#include "tests/fuzz/target.h"

namespace tessera::fuzz::ds_config_fuzz {

TESSERA_FUZZ_TARGET(ds_config) {
  const config::Document document = config::parse_hjson(bytes, "ds.json");
  for (const config::Door door : {config::Door::kNative, config::Door::kPython}) {
    const bool strict = door == config::Door::kNative;
    try {
      const auto read = config::parse_ds_config(
          document,
          {.data_parallel_size = 2, .door = door, .unknown_keys_are_errors = strict, .may_lower_micro_batch = strict});
      config::shared_lines(read.keys);
      config::not_yet_supported(read);
    } catch (const Error&) {  // one door may accept what the other refuses
      if (!strict) throw;
    }
  }
}

}  // namespace tessera::fuzz::ds_config_fuzz
