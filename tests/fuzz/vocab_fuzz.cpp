#include "tessera/data/tokenizer.h"
#include "tests/fuzz/places.h"
#include "tests/fuzz/target.h"

namespace tessera::fuzz::vocab_fuzz {

TESSERA_FUZZ_TARGET(vocab) {
  // vocab.txt, tokenizer_config.json and a text.
  const TemporaryFolder folder;
  const auto parts = parts_of(bytes, 3);
  write(folder, "vocab.txt", parts[0]);
  if (!parts[1].empty()) write(folder, "tokenizer_config.json", parts[1]);
  const auto tokenizer = data::load_tokenizer(folder.path());
  check_places(*tokenizer, parts[2], tokenizer->encode(parts[2]));
}

}  // namespace tessera::fuzz::vocab_fuzz
