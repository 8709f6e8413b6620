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

std::string Charsmap::normalize(const std::string& text) const {
  const auto source = icu::UnicodeString::fromUTF8(text);
  UErrorCode status = U_ZERO_ERROR;
  const std::unique_ptr<icu::BreakIterator> clusters(
      icu::BreakIterator::createCharacterInstance(icu::Locale::getRoot(), status));
  TESSERA_INVARIANT(U_SUCCESS(status));
  clusters->setText(source);
  std::string result, cluster;
  for (int32_t begin = clusters->first(), end = clusters->next(); end != icu::BreakIterator::DONE;
       begin = end, end = clusters->next()) {
    cluster.clear();
    source.tempSubStringBetween(begin, end).toUTF8String(cluster);
    if (cluster.size() < kLongestCluster) {
      if (const auto whole = replacement(cluster)) {
        result += *whole;
        continue;
      }
    }
    for (const char32_t c : decode_utf8(cluster)) {
      std::string character;
      append_utf8(std::u32string_view(&c, 1), character);
      const auto becomes = replacement(character);
      becomes ? result.append(*becomes) : result.append(character);
    }
  }
  return result;
}

}  // namespace tessera::data
