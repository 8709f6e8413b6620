#include "tessera/data/subword_tokenizer.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <utility>

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
      token.content = decode_utf8(parts_.normalize(content));
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
  const SpecialIds& ids = parts_.special_ids;
  for (const auto& id : {ids.bos, ids.eos, ids.pad, ids.unk, ids.cls, ids.sep, ids.mask}) {
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
      encode_text(parts_.normalize ? parts_.normalize(bytes) : bytes, is_first, ids);
    }
    is_first = false;
  });
  return ids;
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
