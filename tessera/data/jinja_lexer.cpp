#include "tessera/data/jinja_lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "tessera/data/unicode.h"

namespace tessera::data::jinja {
namespace {

constexpr std::string_view kBlanks = " \t\n\r\v\f";

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool begins_name(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

std::string without_carriage_returns(std::string_view source) {
  std::string text;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      text += source[i];
    } else if (i + 1 == source.size() || source[i + 1] != '\n') {
      text += '\n';
    }
  }
  if (text.ends_with('\n')) text.pop_back();  // Jinja's keep_trailing_newline is off
  return text;
}

// What stands between the marks, as tokens.
class Expressions {
 public:
  Expressions(std::string_view text, int line) : text_(text), line_(line) {}

  std::vector<Token> tokens() {
    std::vector<Token> tokens;
    do tokens.push_back(next());
    while (tokens.back().kind != Token::Kind::kEnd);
    return tokens;
  }

 private:
  char peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }

  Token token(Token::Kind kind, std::string text = "") const {
    return {.kind = kind, .text = std::move(text), .line = line_};
  }

  Token next() {
    for (; at_ < text_.size() && kBlanks.find(text_[at_]) != std::string_view::npos; ++at_) line_ += text_[at_] == '\n';
    if (at_ == text_.size()) return token(Token::Kind::kEnd);
    const char c = peek();
    if (begins_name(c)) {
      const size_t begin = at_;
      while (begins_name(peek()) || is_digit(peek())) ++at_;
      return token(Token::Kind::kName, std::string(text_.substr(begin, at_ - begin)));
    }
    if (is_digit(c)) return number();
    if (c == '\'' || c == '"') return quoted();
    for (const std::string_view sign : {"**", "//", "==", "!=", ">=", "<="}) {
      if (text_.substr(at_, 2) != sign) continue;
      at_ += 2;
      return token(Token::Kind::kSign, std::string(sign));
    }
    if (std::string_view("+-*/%~<>=.,:|()[]{};").find(c) == std::string_view::npos) {
      throw Mistake{fmt::format("a character that means nothing here: '{}'", c), line_};
    }
    ++at_;
    return token(Token::Kind::kSign, std::string(1, c));
  }

  Token number() {
    std::string digits;
    bool is_real = false;
    for (; at_ < text_.size(); ++at_) {
      const char c = peek();
      const bool begins_fraction = c == '.' && !is_real && is_digit(peek(1));
      const bool begins_exponent =
          (c == 'e' || c == 'E') && (is_digit(peek(1)) || ((peek(1) == '-' || peek(1) == '+') && is_digit(peek(2))));
      if (begins_fraction || begins_exponent) is_real = true;
      if (begins_exponent) digits += text_[at_++];
      if (!is_digit(c) && c != '_' && !begins_fraction && !begins_exponent) break;
      if (peek() != '_' && peek() != '+') digits += peek();
    }
    Token result = token(is_real ? Token::Kind::kReal : Token::Kind::kWhole);
    const char* const end = digits.data() + digits.size();
    const auto read =
        is_real ? std::from_chars(digits.data(), end, result.real) : std::from_chars(digits.data(), end, result.whole);
    if (read.ec != std::errc() || read.ptr != end)
      throw Mistake{fmt::format("{:.100} is too large a number", digits), line_};
    return result;
  }

  // A string, with Python's escapes.
  Token quoted() {
    Token result = token(Token::Kind::kText);
    const char mark = text_[at_++];
    for (; at_ < text_.size() && text_[at_] != mark; ++at_) {
      line_ += text_[at_] == '\n';
      if (text_[at_] == '\\') {
        ++at_;
        escape(result.text);
      } else {
        result.text += text_[at_];
      }
    }
    if (at_ == text_.size()) throw Mistake{"a string does not end", result.line};
    ++at_;
    return result;
  }

  void escape(std::string& out) {
    const char c = peek();
    constexpr std::pair<char, char> kPlain[] = {{'n', '\n'},  {'t', '\t'}, {'r', '\r'}, {'\\', '\\'},
                                                {'\'', '\''}, {'"', '"'},  {'a', '\a'}, {'b', '\b'},
                                                {'f', '\f'},  {'v', '\v'}, {'0', '\0'}};
    for (const auto& [letter, meaning] : kPlain) {
      if (c == letter) return static_cast<void>(out += meaning);
    }
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits == 0) {
      out += '\\';
      if (at_ < text_.size()) out += c;
      return;
    }
    uint32_t code = 0;
    const char* const begin = text_.data() + at_ + 1;
    const char* const end = text_.data() + std::min(at_ + 1 + digits, text_.size());
    if (std::from_chars(begin, end, code, 16).ptr != begin + digits || code > 0x10FFFF ||
        (code >= 0xD800 && code < 0xE000)) {
      throw Mistake{"an escape in a string names no character", line_};
    }
    const auto character = static_cast<char32_t>(code);
    append_utf8(std::u32string_view(&character, 1), out);
    at_ += digits;
  }

  std::string_view text_;
  size_t at_ = 0;
  int line_;
};

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(without_carriage_returns(source)) {}

  std::vector<Piece> pieces() {
    while (at_ < source_.size()) {
      const size_t mark = next_mark();
      if (mark == std::string::npos) {
        add_text(source_.substr(at_));
        break;
      }
      add_text(text_before(mark));
      advance(mark + 2);
      if (peek_sign() != '\0') advance(at_ + 1);
      between(source_[mark + 1]);
    }
    return std::move(pieces_);
  }

 private:
  char peek_sign() const {
    return at_ < source_.size() && (source_[at_] == '-' || source_[at_] == '+') ? source_[at_] : '\0';
  }

  size_t next_mark() const {
    for (size_t at = source_.find('{', at_); at != std::string::npos; at = source_.find('{', at + 1)) {
      if (at + 1 < source_.size() && std::string_view("{%#").find(source_[at + 1]) != std::string_view::npos) return at;
    }
    return std::string::npos;
  }

  void advance(size_t to) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(to), '\n'));
    at_ = to;
  }

  void add_text(std::string text) {
    if (!text.empty())
      pieces_.push_back({.kind = Piece::Kind::kText, .text = std::move(text), .tokens = {}, .line = line_});
  }

  // The text up to a mark, without the white space that the mark takes away.
  std::string text_before(size_t mark) const {
    const std::string text = source_.substr(at_, mark - at_);
    const char sign = mark + 2 < source_.size() ? source_[mark + 2] : '\0';
    if (sign == '-') {
      const size_t last = text.find_last_not_of(kBlanks);
      return last == std::string::npos ? "" : text.substr(0, last + 1);
    }
    if (sign == '+' || source_[mark + 1] == '{') return text;
    const size_t end_of_line = text.rfind('\n');
    if (end_of_line == std::string::npos && !line_begins_) return text;
    const size_t begin = end_of_line == std::string::npos ? 0 : end_of_line + 1;
    return text.find_first_not_of(kBlanks, begin) == std::string::npos ? text.substr(0, begin) : text;
  }

  // From behind the opening mark to behind the closing one.
  void between(char kind) {
    const std::string close = kind == '{' ? "}}" : kind == '%' ? "%}" : "#}";
    const int line = line_;
    const size_t end = kind == '#' ? source_.find(close, at_) : end_of_expressions(close);
    if (end == std::string::npos) throw Mistake{fmt::format("'{}' is missing", close), line};
    std::string text = source_.substr(at_, end - at_);
    const char sign = !text.empty() && (text.back() == '-' || (text.back() == '+' && kind != '{')) ? text.back() : '\0';
    if (sign != '\0') text.pop_back();
    if (kind == '#') return close_mark(end + 2, sign, true);
    auto tokens = Expressions(text, line).tokens();
    const bool is_raw = kind == '%' && tokens[0].text == "raw" && tokens[1].kind == Token::Kind::kEnd;
    close_mark(end + 2, sign, kind == '%' && !is_raw);
    if (is_raw) return raw(line);
    pieces_.push_back({.kind = kind == '{' ? Piece::Kind::kOutput : Piece::Kind::kBlock,
                       .text = "",
                       .tokens = std::move(tokens),
                       .line = line});
  }

  void close_mark(size_t to, char sign, bool trims_line_end) {
    if (sign == '-') {
      to = std::min(source_.find_first_not_of(kBlanks, to), source_.size());
    } else if (sign == '\0' && trims_line_end && to < source_.size() && source_[to] == '\n') {
      ++to;
    }
    advance(to);
    line_begins_ = at_ > 0 && source_[at_ - 1] == '\n';
  }

  // The closing mark outside strings and brackets.
  size_t end_of_expressions(const std::string& close) const {
    int braces = 0;
    for (size_t at = at_; at < source_.size(); ++at) {
      const char c = source_[at];
      if (c == '\'' || c == '"') {
        for (++at; at < source_.size() && source_[at] != c; ++at) at += source_[at] == '\\';
      } else if (braces == 0 && source_.compare(at, 2, close) == 0) {
        return at;
      } else {
        braces += c == '{' ? 1 : c == '}' ? -1 : 0;
      }
    }
    return std::string::npos;
  }

  // "{% raw %}…{% endraw %}"
  void raw(int line) {
    for (size_t mark = source_.find("{%", at_); mark != std::string::npos; mark = source_.find("{%", mark + 2)) {
      const size_t end = source_.find("%}", mark);
      if (end == std::string::npos) break;
      std::string_view inside = std::string_view(source_).substr(mark + 2, end - mark - 2);
      const char sign = !inside.empty() && (inside.back() == '-' || inside.back() == '+') ? inside.back() : '\0';
      if (sign != '\0') inside.remove_suffix(1);
      if (inside.starts_with('-') || inside.starts_with('+')) inside.remove_prefix(1);
      const size_t first = inside.find_first_not_of(kBlanks), last = inside.find_last_not_of(kBlanks);
      if (first == std::string_view::npos || inside.substr(first, last - first + 1) != "endraw") continue;
      add_text(text_before(mark));
      close_mark(end + 2, sign, true);
      return;
    }
    throw Mistake{"'endraw' is missing", line};
  }

  std::string source_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_begins_ = true;  // nothing but what a mark took away stands before in its line
  std::vector<Piece> pieces_;
};

}  // namespace

std::vector<Piece> pieces_of(std::string_view source) { return Lexer(source).pieces(); }

}  // namespace tessera::data::jinja
