#include "tessera/base/shell.h"

#include <algorithm>
#include <cctype>
#include <string_view>

#include "tessera/base/error.h"

namespace tessera {
namespace {

constexpr std::string_view kPlain = "_-./=:,@%+";

bool is_plain(const std::string& word) {
  return !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || kPlain.find(static_cast<char>(c)) != std::string_view::npos;
  });
}

}  // namespace

std::string shell_quote(const std::string& word) {
  if (is_plain(word)) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string(R"('\'')") : std::string(1, c);
  return quoted + "'";
}

std::string shell_command(const std::vector<std::string>& words) {
  std::string command;
  for (const std::string& word : words) command += (command.empty() ? "" : " ") + shell_quote(word);
  return command;
}

std::vector<std::string> shell_words(const std::string& text, const std::string& where) {
  std::vector<std::string> words;
  bool in_word = false;
  char quote = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (quote == 0 && std::isspace(static_cast<unsigned char>(c)) != 0) {
      in_word = false;
      continue;
    }
    if (!in_word) words.emplace_back();
    in_word = true;
    if (c == quote) {
      quote = 0;
    } else if (quote == 0 && (c == '\'' || c == '"')) {
      quote = c;
    } else if (c == '\\' && quote != '\'' && at + 1 < text.size()) {
      const char next = text[++at];
      // Within double quotes a backslash stands for itself, but before these two.
      if (quote == '"' && next != '"' && next != '\\') words.back() += c;
      words.back() += next;
    } else {
      words.back() += c;
    }
  }
  if (quote != 0) {
    throw Error(ErrorKind::kUsage, {"a quote is not closed: " + text, where, "close it, or put a backslash before it"});
  }
  return words;
}

}  // namespace tessera
