#include "tessera/data/aligned_text.h"

#include <algorithm>

#include "tessera/data/unicode.h"

namespace tessera::data {

AlignedText::AlignedText(std::u32string_view text, size_t begin) {
  append_utf8(text, text_);
  origins_.reserve(text_.size());
  for (const char byte : text_) {
    const bool goes_on = (byte & 0xC0) == 0x80;
    if (!goes_on) ++begin;
    origins_.push_back({begin - 1, begin});
  }
}

AlignedText AlignedText::slice(size_t begin, size_t end) const {
  AlignedText result;
  result.text_ = text_.substr(begin, end - begin);
  const auto at = [&](size_t place) { return origins_.begin() + static_cast<std::ptrdiff_t>(place); };
  result.origins_.assign(at(begin), at(end));
  return result;
}

void AlignedText::rewrite(const std::vector<CharacterChange>& changes) {
  std::string text;
  std::vector<CharacterRange> origins;
  size_t place = 0;  // in the old text: all before it has been passed over
  const auto pass_over = [&](int characters) {
    for (; characters > 0 && place < text_.size(); --characters) place += utf8_length(text_[place]);
    place = std::min(place, text_.size());
  };
  for (const auto& [character, change] : changes) {
    const size_t from = change > 0 && place > 0 ? place - 1 : place;
    const CharacterRange origin = origins_.empty() ? CharacterRange() : origins_[std::min(from, origins_.size() - 1)];
    if (change <= 0) pass_over(1 - change);
    append_utf8({&character, 1}, text);
    origins.resize(text.size(), origin);
  }
  text_ = std::move(text);
  origins_ = std::move(origins);
}

void AlignedText::replace(const std::vector<Bytes>& ranges, std::string_view content) {
  std::string text;
  std::vector<CharacterRange> origins;
  size_t done = 0;
  const auto keep_until = [&](size_t end) {
    text.append(text_, done, end - done);
    for (; done < end; ++done) origins.push_back(origins_[done]);
  };
  for (const auto& [begin, end] : ranges) {
    keep_until(begin);
    text += content;
    origins.resize(text.size(), origins_[end - 1]);
    done = end;
  }
  keep_until(text_.size());
  text_ = std::move(text);
  origins_ = std::move(origins);
}

void AlignedText::prepend(std::string_view prefix) {
  if (text_.empty()) return;
  text_.insert(0, prefix);
  origins_.insert(origins_.begin(), prefix.size(), origins_.front());
}

}  // namespace tessera::data
