#include "tessera/config/yaml_file.h"
#include "tests/fuzz/target.h"

namespace tessera::fuzz::yaml_fuzz {

TESSERA_FUZZ_TARGET(yaml) { config::parse_yaml(std::string(bytes), "input.yaml"); }

}  // namespace tessera::fuzz::yaml_fuzz
