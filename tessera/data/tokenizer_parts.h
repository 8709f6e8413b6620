// The parts of a tokenizer.json, by their "type", as the `tokenizers` package has them: what is done to a text before a
// model (bpe.h) makes tokens of its words, and how tokens become a text again. Texts are UTF-8.
//
// Where a file asks for a part or an option that is not supported, it is named: ErrorKind::kData.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/data/aligned_text.h"
#include "tessera/data/tokenizer.h"

namespace tessera::data {

// What is done to a text; a text that remembers where it came from becomes the same. Safe to call from any thread.
struct Normalizer {
  std::function<std::string(std::string text)> text;
  std::function<void(AlignedText& text)> aligned;

  explicit operator bool() const { return text != nullptr; }
};

// part: the "normalizer"; null: none, and the result is empty. `path`: the file, for messages.
Normalizer make_normalizer(const nlohmann::json& part, const std::string& path);

// How a normalised text is cut into words, which the model looks at one by one.
class PreTokenizer {
 public:
  // part: the "pre_tokenizer"; null: the text is one word.
  PreTokenizer(const nlohmann::json& part, const std::string& path);

  // Calls visit(word) in order. `is_first`: nothing of the text comes before `text`.
  using Visitor = std::function<void(std::string_view word)>;
  void split(std::string text, bool is_first, const Visitor& visit) const;

  // The same words.
  std::vector<AlignedText> split(AlignedText text, bool is_first) const;

  // Whether words are bytes, of which each has a token of its own: GPT-2's way to have no unknown character. Its files
  // write them as printable characters (bytes_of_byte_level()).
  bool is_byte_level() const { return byte_level_; }

 private:
  // A word becomes words; the bool: whether it is the text's first.
  struct Step {
    std::function<std::vector<std::string>(std::string word, bool is_first)> words;
    std::function<std::vector<AlignedText>(AlignedText word, bool is_first)> aligned;
  };
  void add(const nlohmann::json& part, const std::string& path);

  std::vector<Step> steps_;
  bool byte_level_ = false;
};

// "Ġhello" -> " hello": each character stands for a byte (Radford et al. 2019). Nothing where one does not.
std::optional<std::string> bytes_of_byte_level(std::string_view text);

// What makes a text of tokens, as they stand in the vocabulary (of a byte-level one: the bytes that they are): what
// comes out, end to end, is the text. part: the "decoder"; null: a space between two.
using DecodeTokens = std::function<std::vector<std::string>(std::vector<std::string> tokens)>;
DecodeTokens make_decoder(const nlohmann::json& part, const std::string& path);

// What the "post_processor" puts around one text; null: nothing.
SampleFrame make_frame(const nlohmann::json& part, const std::string& path);

// Whether offsets leave out the spaces at the ends of a token; of each post-processor that trims them: whether it knows
// the first space of a text to be added.
std::vector<bool> make_offset_trims(const nlohmann::json& part, const std::string& path);

// What it puts around two; nothing where it does not say, or not in this order.
std::optional<PairFrame> make_pair_frame(const nlohmann::json& part, const std::string& path);

// [CLS] … [SEP] … [SEP], of which the second text and the last token are of type 1.
PairFrame bert_pair_frame(int32_t cls, int32_t sep);

}  // namespace tessera::data
