// Words as a POSIX shell takes them: for commands that are printed to be pasted, or that a shell on another host reads.
#pragma once

#include <string>
#include <vector>

namespace tessera {

// The word itself where a shell leaves it alone, otherwise in single quotes: "it's" becomes 'it'\''s'.
std::string shell_quote(const std::string& word);

// The words, quoted and separated by spaces.
std::string shell_command(const std::vector<std::string>& words);

// The words of a text as a shell splits them, by blanks, quotes and backslashes; nothing is expanded.
// ErrorKind::kUsage, with `where`, for a quote that is not closed.
std::vector<std::string> shell_words(const std::string& text, const std::string& where);

}  // namespace tessera
