#include "tests/support/built_places.h"

namespace tessera::test {

std::string source_folder() { return SOURCE_FOLDER; }
std::string nccl_stand_in() { return NCCL_STAND_IN; }
std::string launch_tool() { return LAUNCH_TOOL; }

}  // namespace tessera::test
