#include "tessera/base/shell.h"

#include <algorithm>
#include <cctype>
#include <string_view>

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

}  // namespace tessera
