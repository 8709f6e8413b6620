#include "tessera/config/commented_json.h"

#include <fmt/format.h>

#include <limits>

#include "tessera/base/error.h"

namespace tessera::config {
namespace {

constexpr int kDeepest = 100;  // levels of nesting; a guard for the stack, far beyond any configuration

// Recursive descent over the text. Strings and numbers are only found here; nlohmann-json reads them.
class Parser {
 public:
  Parser(std::string_view text, const std::string& name) : text_(text), document_{name, {}, {}} {}

  Document parse() {
    if (text_.substr(0, 3) == "\xEF\xBB\xBF") text_.remove_prefix(3);
    document_.value = parse_value(Pointer(), 0);
    skip_blank();
    if (at_ < text_.size())
      fail(at_, "there is text after the end of the JSON value", "remove it, or the extra bracket");
    return std::move(document_);
  }

 private:
  Json parse_value(const Pointer& key, int depth) {
    if (depth > kDeepest) fail(at_, fmt::format("nested more than {} levels deep", kDeepest), "flatten it");
    skip_blank();
    if (at_ == text_.size())
      fail(at_, "the file ends where a value was expected", "add the value or the closing bracket");
    const char c = text_[at_];
    if (c == '{') return parse_object(key, depth);
    if (c == '[') return parse_array(key, depth);
    if (c == '"') return parse_string();
    if (c == '-' || c == '+' || c == '.' || (c >= '0' && c <= '9')) return parse_number();
    return parse_word();
  }

  Json parse_object(const Pointer& key, int depth) {
    const size_t opened = at_++;
    Json object = Json::object();
    while (!closes('}', opened)) {
      const size_t start = at_;
      if (text_[at_] != '"') fail(at_, "expected a key in double quotes here", "write \"key\": value");
      const std::string name = parse_string().get<std::string>();
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
      take_comma('}');
    }
    return object;
  }

  Json parse_array(const Pointer& key, int depth) {
    const size_t opened = at_++;
    Json array = Json::array();
    while (!closes(']', opened)) {
      const Pointer child = key / array.size();
      document_.places[child.to_string()] = place_of(at_);
      array.push_back(parse_value(child, depth + 1));
      take_comma(']');
    }
    return array;
  }

  // True when the bracket closes here (and takes it); a comma before it was allowed.
  bool closes(char bracket, size_t opened) {
    skip_blank();
    if (at_ == text_.size()) {
      fail(opened, fmt::format("this '{}' is never closed", text_[opened]), fmt::format("add a '{}'", bracket));
    }
    if (text_[at_] != bracket) return false;
    ++at_;
    return true;
  }

  void take_comma(char bracket) {
    skip_blank();
    if (peek() == ',') {
      ++at_;
    } else if (peek() != bracket && at_ < text_.size()) {
      fail(at_, fmt::format("expected ',' or '{}' here", bracket), "is a comma missing after the previous value?");
    }
  }

  Json parse_string() {
    const size_t start = at_++;
    while (at_ < text_.size() && text_[at_] != '"' && text_[at_] != '\n') at_ += text_[at_] == '\\' ? 2 : 1;
    if (at_ >= text_.size() || text_[at_] == '\n') fail(start, "this string is never closed", "add the closing '\"'");
    ++at_;
    return scalar(start, "this string is not valid JSON", "fix its escapes (a backslash is written \\\\) or its UTF-8");
  }

  Json parse_number() {
    const size_t start = at_;
    if (text_.substr(at_, 9) == "-Infinity") {
      at_ += 9;
      return -std::numeric_limits<double>::infinity();
    }
    while (at_ < text_.size() && std::string_view("+-.0123456789eE").find(text_[at_]) != std::string_view::npos) ++at_;
    return scalar(start, fmt::format("'{}' is not a JSON number", text_.substr(start, at_ - start)),
                  "write it like 5, 0.5 or 5e8");
  }

  Json parse_word() {
    const size_t start = at_;
    while (at_ < text_.size() && (isalnum(static_cast<unsigned char>(text_[at_])) || text_[at_] == '_')) ++at_;
    const std::string_view word = text_.substr(start, at_ - start);
    if (word == "true") return true;
    if (word == "false") return false;
    if (word == "null") return nullptr;
    if (word == "Infinity") return std::numeric_limits<double>::infinity();
    if (word == "True" || word == "False" || word == "None") {
      fail(start, fmt::format("'{}' is Python, not JSON", word), "write true, false or null");
    }
    fail(start, word.empty() ? std::string("expected a value here") : fmt::format("'{}' is not a JSON value", word),
         "write a number, true, false, null, a string in double quotes, a list or an object");
  }

  Json scalar(size_t start, const std::string& what, const std::string& fix) {
    const std::string_view token = text_.substr(start, at_ - start);
    Json value = Json::parse(token.begin(), token.end(), nullptr, /*allow_exceptions=*/false);
    if (value.is_discarded()) fail(start, what, fix);
    return value;
  }

  void skip_blank() {
    while (at_ < text_.size()) {
      if (std::string_view(" \t\r\n").find(text_[at_]) != std::string_view::npos) {
        ++at_;
      } else if (text_.substr(at_, 2) == "//") {
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

Document parse_commented_json(std::string_view text, const std::string& name) { return Parser(text, name).parse(); }

}  // namespace tessera::config
