// Words as a POSIX shell takes them, for commands that are printed to be pasted.
#pragma once

#include <string>
#include <vector>

namespace tessera {

// The word itself where a shell leaves it alone, otherwise in single quotes: "it's" becomes 'it'\''s'.
std::string shell_quote(const std::string& word);

// The words, quoted and separated by spaces.
std::string shell_command(const std::vector<std::string>& words);

}  // namespace tessera
