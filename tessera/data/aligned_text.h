// A text on its way to a tokenizer's model, which remembers where in the given text each of its characters came from.
// The rules by which a changed character inherits its origin are those of the `tokenizers` package (NormalizedString),
// so that offsets agree with its own.
//
//   given    c a f e ́     !            "é" of two characters
//   NFC      c  a  f  é    !
//   origin  01 12 23 34   56           the composed "é" has that of the "e"; nothing points at the mark
//
// A value; not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::data {

// From `begin` to before `end`, in characters of the text as given.
struct CharacterRange {
  size_t begin = 0, end = 0;
};

// One character of a changed text, in order.
struct CharacterChange {
  char32_t character = 0;
  // 1: it is new, and has the origin of what was passed over last. 0 or less: it stands for the next character of the
  // old text, and as many more behind that are dropped.
  int change = 0;
};

class AlignedText {
 public:
  AlignedText() = default;
  // As given; `begin`: characters before it.
  AlignedText(std::u32string_view text, size_t begin);

  const std::string& text() const { return text_; }  // UTF-8
  bool empty() const { return text_.empty(); }

  // Of what stands between two places, in bytes of text(), at least one byte: from its first to its last.
  CharacterRange origin(size_t begin, size_t end) const { return {origins_[begin].begin, origins_[end - 1].end}; }

  AlignedText slice(size_t begin, size_t end) const;

  // The whole text becomes these characters.
  void rewrite(const std::vector<CharacterChange>& changes);

  // What stands between two places, in bytes, becomes `content`, which comes from the last character of it. Ranges are
  // in order, apart from each other, and not empty.
  struct Bytes {
    size_t begin, end;
  };
  void replace(const std::vector<Bytes>& ranges, std::string_view content);

  // Comes from the first character; nothing where there is none.
  void prepend(std::string_view prefix);

 private:
  std::string text_;
  std::vector<CharacterRange> origins_;  // of each byte
};

}  // namespace tessera::data
