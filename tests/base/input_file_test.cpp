#include "tessera/base/input_file.h"

#include <gtest/gtest.h>

#include <fstream>

namespace tessera::input_file_test {
namespace {

// A regular file whose first byte cannot be read: nothing is mapped at address 0.
constexpr const char* kUnreadable = "/proc/self/mem";

TEST(InputFile, ADriveThatFailsIsNotTheEndOfTheFile) {
  std::ifstream file = open_input_file(kUnreadable);
  std::string line;
  EXPECT_FALSE(std::getline(file, line));
  try {
    require_read_whole(file, kUnreadable);
    ADD_FAILURE() << "taken for an empty file";
  } catch (const Error& error) {
    EXPECT_EQ(error.report().what, "the file cannot be read: Input/output error (errno 5)");
    EXPECT_EQ(error.report().where, kUnreadable);
  }
}

}  // namespace
}  // namespace tessera::input_file_test
