#include "tessera/data/charsmap.h"

#include <fmt/format.h>
#include <unicode/brkiter.h>
#include <unicode/unistr.h>

#include <cstring>
#include <memory>

#include "tessera/base/error.h"
#include "tessera/data/unicode.h"

namespace tessera::data {
namespace {

constexpr size_t kLongestCluster = 6;  // bytes; from there on its characters are looked up one by one

// A unit of the double array, as darts-clone lays it out.
bool has_leaf(uint32_t unit) { return (unit >> 8 & 1) != 0; }
uint32_t leaf_value(uint32_t unit) { return unit & 0x7FFF'FFFF; }
uint32_t label(uint32_t unit) { return unit & 0x8000'00FF; }
uint32_t offset(uint32_t unit) { return (unit >> 10) << ((unit & 1u << 9) >> 6); }

[[noreturn]] void refuse_charsmap(const std::string& path) {
  throw Error(ErrorKind::kData, {"the precompiled normalizer is damaged", path, "get the file again"});
}

}  // namespace

Charsmap::Charsmap(const std::string& bytes, const std::string& path) {
  uint32_t size = 0;
  if (bytes.size() < sizeof size) refuse_charsmap(path);
  std::memcpy(&size, bytes.data(), sizeof size);
  if (size == 0 || size % sizeof(uint32_t) != 0 || size > bytes.size() - sizeof size) refuse_charsmap(path);
  trie_.resize(size / sizeof(uint32_t));
  std::memcpy(trie_.data(), bytes.data() + sizeof size, size);
  texts_ = bytes.substr(sizeof size + size);
}

// What the shortest beginning of the characters that the trie has becomes. Damage may lead out of it: then nothing.
std::optional<std::string_view> Charsmap::replacement(std::string_view characters) const {
  size_t at = offset(trie_[0]);
  for (const char c : characters) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte == 0) break;
    at ^= byte;
    if (at >= trie_.size() || label(trie_[at]) != byte) return std::nullopt;
    const uint32_t unit = trie_[at];
    at ^= offset(unit);
    if (!has_leaf(unit)) continue;
    if (at >= trie_.size() || leaf_value(trie_[at]) >= texts_.size()) return std::nullopt;
    const std::string_view rest = std::string_view(texts_).substr(leaf_value(trie_[at]));
    return rest.substr(0, rest.find('\0'));
  }
  return std::nullopt;
}

template <class Visit>
void Charsmap::for_each_part(const std::string& text, const Visit& visit) const {
  const auto source = icu::UnicodeString::fromUTF8(text);
  UErrorCode status = U_ZERO_ERROR;
  const std::unique_ptr<icu::BreakIterator> clusters(
      icu::BreakIterator::createCharacterInstance(icu::Locale::getRoot(), status));
  TESSERA_INVARIANT(U_SUCCESS(status));
  clusters->setText(source);
  std::string cluster;
  for (int32_t begin = clusters->first(), end = clusters->next(); end != icu::BreakIterator::DONE;
       begin = end, end = clusters->next()) {
    cluster.clear();
    source.tempSubStringBetween(begin, end).toUTF8String(cluster);
    if (cluster.size() < kLongestCluster) {
      if (const auto whole = replacement(cluster)) {
        visit(cluster, whole);
        continue;
      }
    }
    for (const char32_t c : decode_utf8(cluster)) {
      std::string character;
      append_utf8(std::u32string_view(&c, 1), character);
      visit(character, replacement(character));
    }
  }
}

std::string Charsmap::normalize(const std::string& text) const {
  std::string result;
  for_each_part(text, [&](const std::string& characters, std::optional<std::string_view> becomes) {
    becomes ? result.append(*becomes) : result.append(characters);
  });
  return result;
}

// As `tokenizers` counts: of what is longer than it was the last characters are new, and what is shorter drops the rest
// with its last character, or with the last one before it where nothing is left of it. Nothing is dropped before the
// first character of the text.
void Charsmap::normalize(AlignedText& text) const {
  std::vector<CharacterChange> changes;
  bool any = false;
  for_each_part(text.text(), [&](const std::string& characters, std::optional<std::string_view> becomes) {
    any = any || becomes.has_value();
    const size_t old_count = decode_utf8(characters).size(), first = changes.size();
    for (const char32_t c : decode_utf8(becomes ? *becomes : std::string_view(characters))) changes.push_back({c, 0});
    const size_t count = changes.size() - first;
    for (size_t i = old_count; i < count; ++i) changes[first + i].change = 1;
    if (count < old_count && !changes.empty()) changes.back().change -= static_cast<int>(old_count - count);
  });
  if (any) text.rewrite(changes);
}

}  // namespace tessera::data
