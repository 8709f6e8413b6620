#include "tessera/data/wordpiece.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/data/tokenizer_parts.h"
#include "tessera/data/unicode.h"

namespace tessera::data {

WordPiece::WordPiece(WordPieceOptions options) : options_(std::move(options)), normalizer_(options_.normalizer) {
  int32_t largest = -1;
  for (const auto& [piece, id] : options_.vocabulary) {
    largest = std::max(largest, id);
    longest_piece_bytes_ = std::max(longest_piece_bytes_, piece.size());
  }
  std::vector<AddedToken> raw, normalized;
  for (AddedToken token : options_.added_tokens) {
    largest = std::max(largest, token.id);
    if (token.normalized) token.content = normalizer_.normalize(token.content);
    (token.normalized ? normalized : raw).push_back(std::move(token));
  }
  raw_tokens_ = AddedTokens(std::move(raw));
  normalized_tokens_ = AddedTokens(std::move(normalized));

  special_.resize(static_cast<size_t>(largest + 1));
  tokens_.resize(special_.size());
  for (const auto& [piece, id] : options_.vocabulary) tokens_[static_cast<size_t>(id)] = piece;
  for (const AddedToken& token : options_.added_tokens) {
    std::string& text = tokens_[static_cast<size_t>(token.id)];
    text.clear();
    append_utf8(token.content, text);
    if (token.special) special_[static_cast<size_t>(token.id)] = true;
  }
  const SpecialIds& ids = options_.special_ids;
  for (const std::optional<int64_t>& id : {ids.cls, ids.sep, ids.pad, ids.mask, ids.unk}) {
    TESSERA_INVARIANT(id && *id >= 0 && *id <= largest);
    special_[static_cast<size_t>(*id)] = true;
  }
  frame_ = {.before = {static_cast<int32_t>(*ids.cls)}, .after = {static_cast<int32_t>(*ids.sep)}};
}

std::optional<PairFrame> WordPiece::pair_frame() const {
  const int32_t cls = frame_.before.front(), sep = frame_.after.front();
  return bert_pair_frame(cls, sep);
}

bool WordPiece::is_special(int32_t id) const {
  return id >= 0 && id < vocab_size() && special_[static_cast<size_t>(id)];
}

namespace {

// A token with the space before it, as the `tokenizers` package tidies it.
std::string tidied(std::string token) {
  constexpr std::pair<std::string_view, std::string_view> kChanges[] = {
      {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
      {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [what, with] : kChanges) {
    for (size_t at = token.find(what); at != std::string::npos; at = token.find(what, at + with.size())) {
      token.replace(at, what.size(), with);
    }
  }
  return token;
}

}  // namespace

std::string WordPiece::decode(std::span<const int32_t> ids, bool skip_special) const {
  const std::string& prefix = options_.continuing_subword_prefix;
  std::string text;
  bool is_first = true;
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocab_size() || (skip_special && is_special(id))) continue;
    std::string token = tokens_[static_cast<size_t>(id)];
    if (!std::exchange(is_first, false)) {
      token = token.starts_with(prefix) ? token.substr(prefix.size()) : " " + token;
    }
    text += options_.clean_up ? tidied(std::move(token)) : token;
  }
  return text;
}

std::vector<int32_t> WordPiece::encode(std::string_view text) const {
  std::vector<int32_t> ids;
  raw_tokens_.split(decode_utf8(text), [&](std::u32string_view piece, std::optional<int32_t> added) {
    if (added) {
      ids.push_back(*added);
      return;
    }
    normalized_tokens_.split(normalizer_.normalize(piece),
                             [&](std::u32string_view words, std::optional<int32_t> token) {
                               if (token) {
                                 ids.push_back(*token);
                               } else {
                                 encode_words(words, ids);
                               }
                             });
  });
  return ids;
}

namespace {

// Calls visit(begin, end) of each word, in characters.
template <class Visit>
void for_each_word(std::u32string_view text, const Visit& visit) {
  size_t start = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool punctuation = is_punctuation(text[i]);
    if (!punctuation && !is_whitespace(text[i])) continue;
    if (start < i) visit(start, i);
    if (punctuation) visit(i, i + 1);
    start = i + 1;
  }
  if (start < text.size()) visit(start, text.size());
}

}  // namespace

void WordPiece::encode_words(std::u32string_view normalized, std::vector<int32_t>& ids) const {
  for_each_word(normalized, [&](size_t begin, size_t end) { encode_word(normalized.substr(begin, end - begin), ids); });
}

std::vector<TokenPlace> WordPiece::encode_with_offsets(std::string_view text) const {
  std::vector<TokenPlace> tokens;
  size_t begin = 0;
  raw_tokens_.split(decode_utf8(text), [&](std::u32string_view piece, std::optional<int32_t> added) {
    if (added) {
      tokens.push_back({*added, begin, begin + piece.size()});
    } else {
      AlignedText aligned(piece, begin);
      normalizer_.normalize(aligned);
      encode_text(aligned, tokens);
    }
    begin += piece.size();
  });
  const std::vector<size_t> bytes = character_starts(text);
  for (TokenPlace& token : tokens) token = {token.id, bytes[token.begin], bytes[token.end]};
  return tokens;
}

void WordPiece::encode_text(const AlignedText& text, std::vector<TokenPlace>& tokens) const {
  const std::vector<size_t> bytes = character_starts(text.text());
  const auto add = [&](int32_t id, size_t begin, size_t end) {
    const auto [from, to] = text.origin(bytes[begin], bytes[end]);
    tokens.push_back({id, from, to});
  };
  size_t begin = 0;
  normalized_tokens_.split(decode_utf8(text.text()), [&](std::u32string_view piece, std::optional<int32_t> token) {
    if (token) add(*token, begin, begin + piece.size());
    const size_t here = begin;
    begin += piece.size();
    if (token) return;
    for_each_word(piece, [&](size_t first, size_t last) {
      std::vector<int32_t> ids;
      std::vector<size_t> ends;
      encode_word(piece.substr(first, last - first), ids, &ends);
      size_t start = here + first;
      for (size_t i = 0; i < ids.size(); ++i) {
        const size_t end = here + first + ends[i];
        add(ids[i], std::exchange(start, end), end);
      }
    });
  });
}

void WordPiece::encode_word(std::u32string_view word, std::vector<int32_t>& ids, std::vector<size_t>* ends) const {
  const size_t before = ids.size();
  const auto add_unknown = [&] {
    ids.resize(before);
    ids.push_back(static_cast<int32_t>(*options_.special_ids.unk));
    if (ends != nullptr) *ends = {word.size()};
  };
  if (static_cast<int64_t>(word.size()) > options_.max_input_chars_per_word) return add_unknown();
  std::string bytes;  // the prefix, then what is left of the word; the first piece does without the prefix
  for (size_t start = 0; start < word.size();) {
    bytes.clear();
    if (start > 0) bytes = options_.continuing_subword_prefix;
    const size_t prefix_bytes = bytes.size();
    append_utf8(word.substr(start), bytes);

    const std::string_view rest(bytes);
    size_t piece_bytes = rest.size();
    auto found = options_.vocabulary.end();
    while (piece_bytes > prefix_bytes) {
      if (piece_bytes <= longest_piece_bytes_) {
        found = options_.vocabulary.find(rest.substr(0, piece_bytes));
        if (found != options_.vocabulary.end()) break;
      }
      do --piece_bytes;  // to the start of the last character
      while (piece_bytes > prefix_bytes && (rest[piece_bytes] & 0xC0) == 0x80);
    }
    if (found == options_.vocabulary.end()) return add_unknown();
    ids.push_back(found->second);
    start += decode_utf8(rest.substr(prefix_bytes, piece_bytes - prefix_bytes)).size();
    if (ends != nullptr) ends->push_back(start);
  }
}

}  // namespace tessera::data
