#include "tessera/base/shell.h"

#include <gtest/gtest.h>

#include <cstdio>

namespace tessera::shell_test {
namespace {

// What the shell itself makes of the command.
std::string shell_says(const std::string& command) {
  FILE* const pipe = popen(command.c_str(), "r");
  std::string text;
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) text += static_cast<char>(c);
  pclose(pipe);
  return text;
}

TEST(Shell, AQuotedWordComesOutAsItWas) {
  for (const std::string word : {"plain", "with space", "it's", "$HOME", "a\"b", "*.txt", "", "~", "[1, 2]", "a\\b",
                                 "-n x", "#no", "ümlaut", "a;b&c|d", "line\nbreak"}) {
    EXPECT_EQ(shell_says("printf %s " + shell_quote(word)), word);
  }
}

TEST(Shell, OrdinaryWordsStayAsTheyAre) {
  EXPECT_EQ(shell_command({"tessera", "train", "runs/a-1.yaml", "--set", "data.train=[a, b]"}),
            "tessera train runs/a-1.yaml --set 'data.train=[a, b]'");
}

}  // namespace
}  // namespace tessera::shell_test
