#include "tessera/config/hjson.h"

#include <fmt/format.h>

#include <limits>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/base/json_text.h"

namespace tessera::config {
namespace {

bool is_blank(char c) { return std::string_view(" \t\r\n\f\v").find(c) != std::string_view::npos; }

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

// Recursive descent over the text. Quoted text and numbers are only found here; nlohmann-json reads them.
class Parser {
 public:
  Parser(std::string_view text, const std::string& name) : text_(text), document_{name, {}, {}} {}

  Document parse() {
    if (text_.substr(0, 3) == "\xEF\xBB\xBF") text_.remove_prefix(3);
    skip_blank();
    if (at_ == text_.size()) fail(at_, "the file is empty", "write an object: {\"key\": value, …}");
    if (peek() == '{' || peek() == '[') {
      document_.value = parse_value(Pointer(), 0);
      skip_blank();
      if (at_ < text_.size()) fail(at_, "there is text after the end of the value", "remove it, or the extra bracket");
    } else {
      document_.value = parse_members(Pointer(), 0, std::nullopt);
    }
    return std::move(document_);
  }

 private:
  Json parse_value(const Pointer& key, int depth) {
    if (depth > kDeepestNesting)
      fail(at_, fmt::format("nested more than {} levels deep", kDeepestNesting), "flatten it");
    if (document_.places.size() > kMostValues)
      fail(at_, fmt::format("there are more than {} values", kMostValues), "write fewer");
    skip_blank();
    if (at_ == text_.size())
      fail(at_, "the file ends where a value was expected", "add the value or the closing bracket");
    if (peek() == '{') {
      const size_t opened = at_++;
      return parse_members(key, depth, opened);
    }
    if (peek() == '[') return parse_array(key, depth);
    if (text_.substr(at_, 3) == "'''") return parse_long_string();
    if (peek() == '"' || peek() == '\'') return parse_string();
    return parse_unquoted();
  }

  // `opened`: where the brace was; without one the object ends with the text.
  Json parse_members(const Pointer& key, int depth, std::optional<size_t> opened) {
    Json object = Json::object();
    while (!ends('}', opened)) {
      const size_t start = at_;
      const std::string name = parse_key();
      const Pointer child = key / name;
      const Place place = place_of(start);
      if (object.contains(name)) {
        fail(start, fmt::format("'{}' is given twice", dotted(child)),
             fmt::format("keep one; the first is at {}", document_.places[child.to_string()].text()));
      }
      document_.places[child.to_string()] = place;
      skip_blank();
      if (peek() != ':') fail(at_, fmt::format("expected ':' after the key '{}'", name), "write \"key\": value");
      ++at_;
      object[name] = parse_value(child, depth + 1);
      skip_comma();
    }
    return object;
  }

  Json parse_array(const Pointer& key, int depth) {
    const size_t opened = at_++;
    Json array = Json::array();
    while (!ends(']', opened)) {
      if (peek() == '}') fail(at_, "expected ',' or ']' here", "close the list first");
      const Pointer child = key / array.size();
      document_.places[child.to_string()] = place_of(at_);
      array.push_back(parse_value(child, depth + 1));
      skip_comma();
    }
    return array;
  }

  // True when the bracket closes here (and takes it), or the text ends where none was opened.
  bool ends(char bracket, std::optional<size_t> opened) {
    skip_blank();
    if (at_ == text_.size()) {
      if (!opened) return true;
      fail(*opened, fmt::format("this '{}' is never closed", text_[*opened]), fmt::format("add a '{}'", bracket));
    }
    if (!opened || text_[at_] != bracket) return false;
    ++at_;
    return true;
  }

  void skip_comma() {
    skip_blank();
    if (peek() == ',') ++at_;
  }

  std::string parse_key() {
    if (peek() == '"' || peek() == '\'') return parse_string().get<std::string>();
    const size_t start = at_;
    while (at_ < text_.size() && !is_blank(text_[at_]) &&
           std::string_view(",:[]{}\"").find(text_[at_]) == std::string_view::npos) {
      ++at_;
    }
    const std::string name(text_.substr(start, at_ - start));
    if (name.empty()) fail(start, "expected a key here", "write \"key\": value");
    if (!is_utf8(name)) fail(start, "this key is not UTF-8", "save the file as UTF-8");
    return name;
  }

  // In single or double quotes.
  Json parse_string() {
    const size_t start = at_;
    const char quote = text_[at_++];
    while (at_ < text_.size() && text_[at_] != quote && text_[at_] != '\n') at_ += text_[at_] == '\\' ? 2 : 1;
    if (at_ >= text_.size() || text_[at_] == '\n') {
      fail(start, "this string is never closed", fmt::format("add the closing {}", quote == '"' ? "'\"'" : "\"'\""));
    }
    ++at_;
    std::string token(text_.substr(start, at_ - start));
    if (quote == '\'') token = in_double_quotes(token);
    const Json value = Json::parse(token, nullptr, /*allow_exceptions=*/false);
    if (!value.is_discarded()) return value;
    fail(start, "this string is not valid JSON", "fix its escapes (a backslash is written \\\\) or its UTF-8");
  }

  static std::string in_double_quotes(const std::string& token) {
    std::string quoted = "\"";
    for (size_t i = 1; i + 1 < token.size(); ++i) {
      if (token[i] == '\\' && token[i + 1] == '\'') continue;
      if (token[i] == '"') quoted += '\\';
      quoted += token[i];
      if (token[i] == '\\' && i + 2 < token.size()) quoted += token[++i];
    }
    return quoted + "\"";
  }

  // Without the blanks around it and around each of its lines.
  Json parse_long_string() {
    const size_t start = at_;
    const size_t end = text_.find("'''", start + 3);
    if (end == std::string_view::npos) fail(start, "this string is never closed", "add the closing '''");
    std::string_view left = trimmed(text_.substr(start + 3, end - start - 3));
    at_ = end + 3;
    std::string joined;
    while (true) {
      const size_t stop = left.find('\n');
      joined += trimmed(left.substr(0, stop));
      if (stop == std::string_view::npos) break;
      joined += '\n';
      left.remove_prefix(stop + 1);
    }
    if (!is_utf8(joined)) fail(start, "this string is not UTF-8", "save the file as UTF-8");
    return joined;
  }

  // A number or a word up to the next sign that can end it; anything else is text up to the end of the line.
  Json parse_unquoted() {
    const size_t start = at_;
    for (;; ++at_) {
      const bool ends_line = at_ == text_.size() || text_[at_] == '\n' || text_[at_] == '\r';
      const std::string_view two = text_.substr(std::min(at_, text_.size()), 2);
      const bool may_end =
          ends_line || std::string_view(",}]#").find(peek()) != std::string_view::npos || two == "//" || two == "/*";
      if (!may_end) continue;
      const std::string_view word = trimmed(text_.substr(start, at_ - start));
      if (word.empty()) {
        at_ = start;
        fail(start, "expected a value here", "write a number, true, false, null, text in quotes, a list or an object");
      }
      if (const std::optional<Json> value = number_or_word(word, start, ends_line)) return *value;
      if (!ends_line) continue;
      if (std::string_view(",:}]").find(word.front()) != std::string_view::npos) {
        at_ = start;
        fail(start, "expected a value here", "write a number, true, false, null, text in quotes, a list or an object");
      }
      const std::string text(word);
      if (!is_utf8(text)) fail(start, "this text is not UTF-8", "save the file as UTF-8");
      return text;
    }
  }

  // Nothing for text.
  std::optional<Json> number_or_word(std::string_view word, size_t start, bool ends_line) {
    constexpr size_t kLongest = 400;  // digits of a number
    if (word.size() > kLongest) return std::nullopt;
    if (word == "true") return true;
    if (word == "false") return false;
    if (word == "null") return nullptr;
    if (word == "NaN") return std::numeric_limits<double>::quiet_NaN();
    if (word == "Infinity") return std::numeric_limits<double>::infinity();
    if (word == "-Infinity") return -std::numeric_limits<double>::infinity();
    if (word == "True" || word == "False" || word == "None") {
      fail(start, fmt::format("'{}' is Python, not JSON", word), "write true, false or null");
    }
    if (word.find_first_not_of("+-.0123456789eE") != std::string_view::npos) return std::nullopt;
    Json number = Json::parse(word.begin(), word.end(), nullptr, /*allow_exceptions=*/false);
    if (number.is_number()) return number;
    if (ends_line || isalpha(static_cast<unsigned char>(word.front()))) return std::nullopt;
    fail(start, fmt::format("'{}' is not a JSON number", word), "write it like 5, 0.5 or 5e8");
  }

  void skip_blank() {
    while (at_ < text_.size()) {
      if (is_blank(text_[at_])) {
        ++at_;
      } else if (text_[at_] == '#' || text_.substr(at_, 2) == "//") {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (text_.substr(at_, 2) == "/*") {
        const size_t end = text_.find("*/", at_ + 2);
        if (end == std::string_view::npos) fail(at_, "this comment is never closed", "add '*/'");
        at_ = end + 2;
      } else {
        return;
      }
    }
  }

  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  // Places are asked for in rising order but for errors, so counting goes on from the last one.
  Place place_of(size_t offset) {
    if (offset < counted_) counted_ = 0, line_ = 1, column_ = 1;
    for (; counted_ < offset; ++counted_) {
      if (text_[counted_] == '\n') {
        ++line_;
        column_ = 1;
      } else if ((static_cast<unsigned char>(text_[counted_]) & 0xC0) != 0x80) {
        ++column_;  // not a continuation byte of UTF-8
      }
    }
    return {document_.name, line_, column_};
  }

  [[noreturn]] void fail(size_t offset, const std::string& what, const std::string& fix) {
    throw Error(ErrorKind::kConfig, {what, place_of(std::min(offset, text_.size())).text(), fix});
  }

  std::string_view text_;
  Document document_;
  size_t at_ = 0;
  size_t counted_ = 0;
  int line_ = 1;
  int column_ = 1;
};

}  // namespace

Document parse_hjson(std::string_view text, const std::string& name) { return Parser(text, name).parse(); }

}  // namespace tessera::config
