// Text to token ids, as the `tokenizers` package does it, read from a Hugging Face folder.
//
//   const auto tokenizer = load_tokenizer("models/minilm");
//   tokenizer->encode("hello world");                // {7592, 2088}
//   tokenizer->encode_with_offsets("hello world");   // {{7592, 0, 5}, {2088, 6, 11}}
//
// Immutable after loading; safe to use from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::data {

// Of the tokens with a role, by the role; nothing where the tokenizer has none.
struct SpecialIds {
  std::optional<int64_t> cls, sep, pad, mask, unk, bos, eos;
};

// ErrorKind::kData where there is none. `role` is for the message: "padding".
int64_t required_id(std::optional<int64_t> id, const std::string& role);

class Tokenizer;

// ErrorKind::kData where `tokenizer`, of `folder`, has tokens that a model of so many does not know. `given_by`: where
// that number is from, for the message: the path of a config.json.
void require_vocabulary(const Tokenizer& tokenizer, const std::string& folder, int64_t tokens,
                        const std::string& given_by);

// What a sample has before and after the tokens of its text: the tokenizer's own template, e.g. [CLS] … [SEP].
struct SampleFrame {
  std::vector<int32_t> before;
  std::vector<int32_t> after;

  size_t size() const { return before.size() + after.size(); }
};

// The same of two texts, and the type of each token, by which some models tell the texts apart: [CLS] … [SEP] …
// [SEP].
struct PairFrame {
  struct Token {
    int32_t id = 0;
    int32_t type = 0;
  };
  std::vector<Token> before, between, after;
  int32_t first_type = 0, second_type = 0;  // of the texts' tokens

  size_t size() const { return before.size() + between.size() + after.size(); }
};

// A token, and where in the text as given it came from: text.substr(begin, end - begin). In bytes, at the borders of
// characters (the `tokenizers` package's Python counts characters, its Rust bytes). Tokens of one character's bytes all
// have the whole character, so places may overlap; what a normalizer drops may be in none.
struct TokenPlace {
  int32_t id = 0;
  size_t begin = 0, end = 0;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Ids of the text alone: no frame, no truncation. A special token that is spelt out in the text ("[SEP]") yields its
  // own id. Bytes that are not UTF-8 count as U+FFFD.
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;

  // The same tokens with their places, those of the package's Encoding.offsets; where the folder has a SentencePiece
  // model, those of the sentencepiece library. Slower than encode(), which does not keep track of them.
  virtual std::vector<TokenPlace> encode_with_offsets(std::string_view text) const = 0;

  // The same in the tokenizer's frame, whose tokens have the place {0, 0}.
  std::vector<TokenPlace> encode_framed(std::string_view text) const;

  // The text of tokens, as the `tokenizers` package makes it; ids that are not of the vocabulary are left out, and
  // special ones where `skip_special`. Bytes that are no UTF-8 are U+FFFD.
  virtual std::string decode(std::span<const int32_t> ids, bool skip_special) const = 0;

  // One more than the largest id: the rows that an embedding needs.
  virtual int64_t vocab_size() const = 0;

  virtual const SpecialIds& special_ids() const = 0;
  virtual bool is_special(int32_t id) const = 0;  // one with a role, or any that the folder declares special

  virtual const SampleFrame& frame() const = 0;

  // Nothing where the folder does not say how a pair of texts is framed.
  virtual std::optional<PairFrame> pair_frame() const { return std::nullopt; }

  // Paths of the files that make up this tokenizer, to be copied into an exported model folder.
  virtual std::vector<std::string> files() const = 0;
};

// Its frame, whose last token is that of a text's end, where it has one.
SampleFrame frame_with_eos(const Tokenizer& tokenizer);

// From tokenizer.json where the folder has one, else from vocab.txt; tokenizer_config.json names the special tokens
// (and, for vocab.txt, do_lower_case, tokenize_chinese_chars and strip_accents). Truncation and padding that
// tokenizer.json may ask for are left to the dataset and the collator.
//
// ErrorKind::kData when the folder holds no tokenizer, a file is damaged, a special token is not in the vocabulary, or
// tokenizer.json asks for a model, normalizer or pre-tokenizer that is not supported (it is named).
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& folder);

}  // namespace tessera::data
