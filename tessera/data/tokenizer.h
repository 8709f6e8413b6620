// Text to token ids, as the `tokenizers` package does it, read from a Hugging Face folder.
//
//   const auto tokenizer = load_tokenizer("bert-base-uncased");
//   tokenizer->encode("hello world");   // {7592, 2088}
//
// Immutable after loading; safe to use from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::data {

struct SpecialIds {
  int64_t cls, sep, pad, mask, unk;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Ids of the text alone: no [CLS], no [SEP], no truncation. A special token that is spelt out in the text ("[MASK]")
  // yields its own id. Bytes that are not UTF-8 count as U+FFFD.
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;

  // One more than the largest id: the rows that an embedding needs.
  virtual int64_t vocab_size() const = 0;

  virtual const SpecialIds& special_ids() const = 0;
  virtual bool is_special(
      int32_t id) const = 0;  // never masked: the five above and all that the folder declares special

  // Paths of the files that make up this tokenizer, to be copied into an exported model folder.
  virtual std::vector<std::string> files() const = 0;
};

// From tokenizer.json where the folder has one, else from vocab.txt; tokenizer_config.json names the special tokens
// (and, for vocab.txt, do_lower_case, tokenize_chinese_chars and strip_accents). Truncation and padding that
// tokenizer.json may ask for are left to the dataset and the collator.
//
// ErrorKind::kData when the folder holds no tokenizer, a file is damaged, a special token is not in the vocabulary, or
// tokenizer.json asks for a model, normalizer or pre-tokenizer that is not supported (it is named).
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& folder);

}  // namespace tessera::data
