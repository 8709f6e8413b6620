#include "tessera/data/tokenizer.h"
#include "tests/fuzz/places.h"
#include "tests/fuzz/target.h"

namespace tessera::fuzz::tokenizer_fuzz {

TESSERA_FUZZ_TARGET(tokenizer) {
  // tokenizer.json, tokenizer_config.json and a text.
  const TemporaryFolder folder;
  const auto parts = parts_of(bytes, 3);
  write(folder, "tokenizer.json", parts[0]);
  if (!parts[1].empty()) write(folder, "tokenizer_config.json", parts[1]);
  const auto tokenizer = data::load_tokenizer(folder.path());
  const std::vector<int32_t> ids = tokenizer->encode(parts[2]);
  tokenizer->decode(ids, /*skip_special=*/true);
  check_places(*tokenizer, parts[2], ids);
}

}  // namespace tessera::fuzz::tokenizer_fuzz
