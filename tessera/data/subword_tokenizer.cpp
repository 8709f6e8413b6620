#include "tessera/data/subword_tokenizer.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <utility>

#include "tessera/data/tokenizer_files.h"
#include "tessera/data/unicode.h"

namespace tessera::data {

// Words and their ids, in parts with a lock each.
class SubwordTokenizer::Cache {
 public:
  static constexpr size_t kLongestWord = 64;  // bytes; longer ones seldom come again

  bool find(std::string_view word, std::vector<int32_t>& ids) {
    Part& part = part_of(word);
    const std::lock_guard lock(part.mutex);
    const auto found = part.ids.find(word);
    if (found == part.ids.end()) return false;
    ids.insert(ids.end(), found->second.begin(), found->second.end());
    return true;
  }
  void add(std::string_view word, std::vector<int32_t> ids) {
    Part& part = part_of(word);
    const std::lock_guard lock(part.mutex);
    if (part.ids.size() < kWordsOfPart) part.ids.emplace(word, std::move(ids));
  }

 private:
  static constexpr size_t kParts = 64, kWordsOfPart = 1024;
  struct Part {
    std::mutex mutex;
    StringMap<std::vector<int32_t>> ids;
  };
  Part& part_of(std::string_view word) { return parts_[std::hash<std::string_view>()(word) % kParts]; }

  std::array<Part, kParts> parts_;
};

SubwordTokenizer::SubwordTokenizer(SubwordParts parts) : parts_(std::move(parts)), cache_(std::make_unique<Cache>()) {
  int32_t largest = -1;
  for (const auto& [token, id] : parts_.model->vocabulary()) largest = std::max(largest, id);
  std::vector<AddedToken> raw, normalized;
  for (AddedToken token : parts_.added_tokens) {
    largest = std::max(largest, token.id);
    if (token.normalized && parts_.normalize) {
      std::string content;
      append_utf8(token.content, content);
      token.content = decode_utf8(parts_.normalize.text(content));
    }
    (token.normalized ? normalized : raw).push_back(std::move(token));
  }
  raw_tokens_ = AddedTokens(std::move(raw));
  normalized_tokens_ = AddedTokens(std::move(normalized));
  special_.resize(static_cast<size_t>(largest + 1));
  tokens_.resize(special_.size());
  for (const auto& [token, id] : parts_.model->vocabulary()) tokens_[static_cast<size_t>(id)] = token;
  for (const AddedToken& token : parts_.added_tokens) {
    std::string& text = tokens_[static_cast<size_t>(token.id)];
    text.clear();
    append_utf8(token.content, text);
    if (token.special) special_[static_cast<size_t>(token.id)] = true;
  }
  for (const auto& [key, role] : kSpecialRoles) {
    const std::optional<int64_t>& id = parts_.special_ids.*role;
    if (id && *id < vocab_size()) special_[static_cast<size_t>(*id)] = true;
  }
}

SubwordTokenizer::~SubwordTokenizer() = default;

std::vector<int32_t> SubwordTokenizer::encode(std::string_view text) const {
  std::vector<int32_t> ids;
  std::string bytes;
  bool is_first = true;
  raw_tokens_.split(decode_utf8(text), [&](std::u32string_view piece, std::optional<int32_t> added) {
    if (added) {
      ids.push_back(*added);
    } else {
      bytes.clear();
      append_utf8(piece, bytes);
      encode_text(parts_.normalize ? parts_.normalize.text(bytes) : bytes, is_first, ids);
    }
    is_first = false;
  });
  return ids;
}

namespace {

// Characters at the beginning and the end that count as spaces: of a byte-level token's own, spaces alone.
std::pair<size_t, size_t> spaces_at_ends(std::u32string_view token, bool of_bytes) {
  constexpr char32_t kByteLevelSpace = U'\u0120';
  const auto is_space = [&](char32_t c) { return of_bytes ? c == U' ' : is_whitespace(c) || c == kByteLevelSpace; };
  const auto begin = std::find_if_not(token.begin(), token.end(), is_space);
  const auto end = std::find_if_not(token.rbegin(), token.rend(), is_space);
  return {static_cast<size_t>(begin - token.begin()), static_cast<size_t>(end - token.rbegin())};
}

}  // namespace

// Leaves the spaces at a token's ends out of its place, but not a first one that was added before the text.
void SubwordTokenizer::trim(std::vector<PlacedToken>& tokens) const {
  for (const bool adds_space : parts_.offset_trims) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      const std::optional<std::u32string>& added = tokens[i].added;
      const bool of_bytes = !added && parts_.pre_tokenizer.is_byte_level();
      const std::string& own = tokens_[static_cast<size_t>(tokens[i].id)];
      auto [before, after] = spaces_at_ends(added ? *added : decode_utf8(own), of_bytes);
      CharacterRange& place = tokens[i].place;
      if (before == 1 && adds_space && (i == 0 || place.begin == 0)) before = 0;
      place.begin = std::min(place.begin + before, place.end);
      if (place.end >= after) place.end = std::max(place.end - after, place.begin);
    }
  }
}

std::vector<TokenPlace> SubwordTokenizer::encode_with_offsets(std::string_view text) const {
  std::vector<PlacedToken> tokens;
  bool is_first = true;
  size_t begin = 0;
  raw_tokens_.split(decode_utf8(text), [&](std::u32string_view piece, std::optional<int32_t> added) {
    if (added) {
      tokens.push_back({*added, {begin, begin + piece.size()}, std::u32string(piece)});
    } else {
      AlignedText aligned(piece, begin);
      if (parts_.normalize) parts_.normalize.aligned(aligned);
      encode_text(std::move(aligned), is_first, tokens);
    }
    begin += piece.size();
    is_first = false;
  });
  trim(tokens);
  const std::vector<size_t> bytes = character_starts(text);
  std::vector<TokenPlace> result;
  for (const auto& [id, place, added] : tokens) result.push_back({id, bytes[place.begin], bytes[place.end]});
  return result;
}

void SubwordTokenizer::encode_text(AlignedText text, bool is_first, std::vector<PlacedToken>& tokens) const {
  const auto words = [&](AlignedText of, bool first) {
    for (const AlignedText& word : parts_.pre_tokenizer.split(std::move(of), first)) {
      for (const auto& [id, begin, end] : parts_.model->encode_with_places(word.text())) {
        tokens.push_back({id, word.origin(begin, end)});
      }
    }
  };
  if (normalized_tokens_.empty()) return words(std::move(text), is_first);
  size_t begin = 0;  // in bytes
  normalized_tokens_.split(decode_utf8(text.text()), [&](std::u32string_view piece, std::optional<int32_t> added) {
    std::string bytes;
    append_utf8(piece, bytes);
    const size_t end = begin + bytes.size();
    if (added) {
      tokens.push_back({*added, text.origin(begin, end), std::u32string(piece)});
    } else {
      words(text.slice(begin, end), is_first);
    }
    begin = end;
    is_first = false;
  });
}

std::string SubwordTokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::vector<std::string> tokens;
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocab_size() || (skip_special && is_special(id))) continue;
    tokens.push_back(tokens_[static_cast<size_t>(id)]);
  }
  std::string text;
  for (const std::string& part : parts_.decode(std::move(tokens))) text += part;
  return text;
}

void SubwordTokenizer::encode_text(std::string text, bool is_first, std::vector<int32_t>& ids) const {
  const auto words = [&](std::string of, bool first) {
    parts_.pre_tokenizer.split(std::move(of), first, [&](std::string_view word) { encode_word(word, ids); });
  };
  if (normalized_tokens_.empty()) return words(std::move(text), is_first);
  normalized_tokens_.split(decode_utf8(text), [&](std::u32string_view piece, std::optional<int32_t> added) {
    if (added) {
      ids.push_back(*added);
    } else {
      std::string bytes;
      append_utf8(piece, bytes);
      words(std::move(bytes), is_first);
    }
    is_first = false;
  });
}

void SubwordTokenizer::encode_word(std::string_view word, std::vector<int32_t>& ids) const {
  if (word.size() > Cache::kLongestWord) return parts_.model->encode(word, ids);
  if (cache_->find(word, ids)) return;
  std::vector<int32_t> own;
  parts_.model->encode(word, own);
  ids.insert(ids.end(), own.begin(), own.end());
  cache_->add(word, std::move(own));
}

}  // namespace tessera::data
