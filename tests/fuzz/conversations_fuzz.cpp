#include "tessera/data/conversations.h"
#include "tests/fuzz/target.h"

namespace tessera::fuzz::conversations_fuzz {

TESSERA_FUZZ_TARGET(conversations) {
  const TemporaryFolder folder;
  data::read_conversations(write(folder, "rows.jsonl", bytes));
}

}  // namespace tessera::fuzz::conversations_fuzz
