// Each file of each target's corpus, once: seeds, and what fuzzing found.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "tests/fuzz/target.h"
#include "tests/support/built_places.h"

namespace tessera::fuzz {
namespace {

namespace fs = std::filesystem;

class Corpus : public testing::TestWithParam<Target> {};

TEST_P(Corpus, IsReadOrRefused) {
  const fs::path folder = fs::path(test::source_folder()) / "tests" / "fuzz" / "corpus" / GetParam().name;
  int files = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    EXPECT_TRUE(holds(GetParam(), bytes)) << entry.path();
    ++files;
  }
  EXPECT_GT(files, 0) << folder;
}

INSTANTIATE_TEST_SUITE_P(Of, Corpus, testing::ValuesIn(targets()),
                         [](const auto& info) { return std::string(info.param.name); });

// What a target does that it must not do is seen.
TEST(Target, MayOnlyThrowAnErrorOfItsInput) {
  EXPECT_TRUE(holds({"returns", [](std::string_view) {}}, "x"));
  EXPECT_FALSE(holds({"throws", [](std::string_view) { throw std::out_of_range("at"); }}, "x"));
}

}  // namespace
}  // namespace tessera::fuzz
