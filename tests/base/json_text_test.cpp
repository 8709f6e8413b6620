// What is read from outside: regular files of a bounded size, and JSON that says where it is wrong.
#include "tessera/base/json_text.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tessera/base/input_file.h"
#include "tests/support/temporary_folder.h"

namespace tessera::json_text_test {
namespace {

std::string refusal(const std::string& text) {
  try {
    parse_json(text, {.where = "here", .fix = "mend it", .kind = ErrorKind::kConfig});
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfig);
    EXPECT_EQ(error.report().where, "here");
    EXPECT_EQ(error.report().fix, "mend it");
    return error.report().what;
  }
  return "it was taken";
}

TEST(JsonText, KeepsWhatIsJson) {
  const auto value = parse_json(R"({"a": [1, 2.5, null, {"a": "ä"}], "b": {"a": true}})", {.where = ""});
  EXPECT_EQ(value, (nlohmann::json{{"a", {1, 2.5, nullptr, {{"a", "ä"}}}}, {"b", {{"a", true}}}}));
}

TEST(JsonText, SaysWhereTheMistakeIs) {
  EXPECT_EQ(refusal("{\"a\": 1,\n \"b\" 2}"), "it is not JSON: a mistake at line 2, column 6");
  EXPECT_EQ(refusal(R"({"a" 1})"), "it is not JSON: a mistake at column 6");
  EXPECT_EQ(refusal(""), "it is not JSON: a mistake at column 1");
  EXPECT_EQ(refusal("{\"a\": \"\xff\"}"), "it is not JSON: a mistake at column 8");
}

TEST(JsonText, RefusesWhatNoReaderShouldSee) {
  EXPECT_EQ(refusal(std::string(100, '[') + std::string(100, ']')), "it was taken");
  EXPECT_EQ(refusal(std::string(101, '[') + std::string(101, ']')), "it is nested more than 100 levels deep");
  EXPECT_EQ(refusal(std::string(1'000'000, '[')), "it is nested more than 100 levels deep");
  EXPECT_EQ(refusal(R"({"a": 1, "b": {"a": 2}, "a": 3})"), "it names 'a' twice");
  EXPECT_EQ(refusal(R"([1e999])"), "it has a number that is too large");
}

TEST(InputFile, IsRegularAndNotTooLarge) {
  const test::TemporaryFolder folder;
  const auto path = folder.path() / "file";
  std::ofstream(path) << "12345";
  EXPECT_EQ(read_input_file(path), "12345");
  EXPECT_THROW(read_input_file(path, ErrorKind::kData, 4), Error);
  EXPECT_THROW(read_input_file(folder.path()), Error);
  EXPECT_THROW(read_input_file("/dev/zero"), Error);
  EXPECT_THROW(read_input_file(folder.path() / "nowhere"), Error);
  ASSERT_EQ(mkfifo((folder.path() / "pipe").c_str(), 0600), 0);
  try {
    require_input_file(folder.path() / "pipe", ErrorKind::kConfig);
    FAIL() << "a pipe was opened";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfig);
    EXPECT_EQ(error.report().what, "this is a pipe, not a file");
  }
}

}  // namespace
}  // namespace tessera::json_text_test
