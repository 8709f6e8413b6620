#include "tessera/data/text_stream.h"

#include <utility>

#include "tessera/data/unicode.h"

namespace tessera::data {
namespace {

bool is_blank(const std::string& text) {
  for (const char32_t c : decode_utf8(text)) {
    if (!is_whitespace(c)) return false;
  }
  return true;
}

}  // namespace

TextStream::TextStream(const Tokenizer& tokenizer, std::span<const int32_t> before)
    : tokenizer_(tokenizer), tokens_(before.begin(), before.end()), read_(tokens_.size()), given_(text()) {}

std::string TextStream::add(int32_t token) {
  tokens_.push_back(token);
  const std::string so_far = text();
  return so_far.ends_with("\uFFFD") ? "" : given(so_far);
}

std::string TextStream::finish() { return given(text()); }

// What stands after what was given. Once it has more than spaces, with which a text may not begin, it is enough to
// decode the next tokens behind.
std::string TextStream::given(const std::string& text) {
  std::string fresh = text.starts_with(given_) ? text.substr(given_.size()) : text;
  if (is_blank(fresh)) {
    given_ = text;
    read_ = tokens_.size();
    return fresh;
  }
  tokens_.erase(tokens_.begin(), tokens_.begin() + static_cast<std::ptrdiff_t>(read_));
  read_ = tokens_.size();
  given_ = this->text();
  return fresh;
}

}  // namespace tessera::data
