#include "tessera/config/commented_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tessera/base/error.h"
#include "tessera/config/yaml_file.h"

namespace tessera::config {
namespace {

std::string refusal(const std::string& text) {
  try {
    parse_commented_json(text, "ds.json");
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(CommentedJson, TakesCommentsAndTrailingCommas) {
  const Document document =
      parse_commented_json("// head\n{ \"a\": 1, /* b\n */ \"c\": [1, 2,], // end\n}\n", "ds.json");
  EXPECT_EQ(document.value, Json({{"a", 1}, {"c", {1, 2}}}));
}

TEST(CommentedJson, LeavesCommentSignsInTextAlone) {
  const Document document = parse_commented_json(R"({"url": "http://host/*path*/", "quote": "\"//\""})", "ds.json");
  EXPECT_EQ(document.value.at("url"), "http://host/*path*/");
  EXPECT_EQ(document.value.at("quote"), "\"//\"");
}

// Counted by hand; the two characters of the comment take six bytes, and columns count characters.
TEST(CommentedJson, KnowsThePlaceOfEveryKey) {
  const Document document = parse_commented_json("{\n  \"a\": {\"b\": 1},\n  /* 配置 */ \"c\": [5, 6]\n}", "ds.json");
  EXPECT_EQ(document.place(Pointer("/a")).text(), "ds.json:2:3");
  EXPECT_EQ(document.place(Pointer("/a/b")).text(), "ds.json:2:9");
  EXPECT_EQ(document.place(Pointer("/c")).text(), "ds.json:3:12");
  EXPECT_EQ(document.place(Pointer("/c/1")).text(), "ds.json:3:21");
  EXPECT_EQ(document.place(Pointer("/a/missing")).text(), "ds.json:2:3");  // the nearest that is there
}

TEST(CommentedJson, RefusesAKeyGivenTwiceAndNamesBothPlaces) {
  const std::string text = refusal("{\"a\": {\"b\": 1,\n \"b\": 2}}");
  EXPECT_THAT(text, testing::HasSubstr("'a.b' is given twice"));
  EXPECT_THAT(text, testing::HasSubstr("ds.json:2:2"));
  EXPECT_THAT(text, testing::HasSubstr("ds.json:1:8"));
}

TEST(CommentedJson, RefusesWhatIsNotJsonAtItsPlace) {
  EXPECT_THAT(refusal(""), testing::HasSubstr("ds.json:1:1"));
  EXPECT_THAT(refusal("{\"a\" 1}"), testing::HasSubstr("ds.json:1:6"));
  EXPECT_THAT(refusal("{\"a\": 1\n \"b\": 2}"), testing::HasSubstr("ds.json:2:2"));
  EXPECT_THAT(refusal("{a: 1}"), testing::HasSubstr("double quotes"));
  EXPECT_THAT(refusal("{\"a\": 01}"), testing::HasSubstr("'01' is not a JSON number"));
  EXPECT_THAT(refusal("{\"a\": 1e}"), testing::HasSubstr("is not a JSON number"));
  EXPECT_THAT(refusal("{\"a\": True}"), testing::HasSubstr("'True' is Python"));
  EXPECT_THAT(refusal("{\"a\": \"x\n\"}"), testing::HasSubstr("never closed"));
  EXPECT_THAT(refusal("{\"a\": \"\\q\"}"), testing::HasSubstr("not valid JSON"));
  EXPECT_THAT(refusal("{\"a\": [1, 2}"), testing::HasSubstr("',' or ']'"));
  EXPECT_THAT(refusal("{\"a\": 1"), testing::HasSubstr("this '{' is never closed"));
  EXPECT_THAT(refusal("{} {}"), testing::HasSubstr("after the end"));
  EXPECT_THAT(refusal("{\"a\": 1 /* "), testing::HasSubstr("comment is never closed"));
  EXPECT_THAT(refusal(","), testing::HasSubstr("expected a value here"));
  EXPECT_THAT(refusal("{\"a\": \"\xFF\"}"), testing::HasSubstr("UTF-8"));
  EXPECT_THAT(refusal(std::string(100'000, '[')), testing::HasSubstr("levels deep"));
}

// Every beginning of a valid file is either refused with an Error or complete; none crashes or hangs.
TEST(CommentedJson, SurvivesAFileThatIsCutOffAnywhere) {
  const std::string whole = "{\"a\": [1, -2.5e3, true, null], /* c */ \"b\": {\"c\": \"x\\\"y\"}, // d\n}";
  for (size_t length = 0; length < whole.size(); ++length) {
    EXPECT_NE(refusal(whole.substr(0, length)), "accepted") << length;
  }
  EXPECT_EQ(refusal(whole), "accepted");
}

TEST(CommentedJson, ReadsWhatPythonWritesForInfinity) {
  EXPECT_TRUE(std::isinf(parse_commented_json("{\"a\": Infinity}", "").value.at("a").get<double>()));
  EXPECT_LT(parse_commented_json("[-Infinity]", "").value.at(0).get<double>(), 0);
}

TEST(Yaml, GivesScalarsTheirTypesAndKeepsQuotedText) {
  const Document document =
      parse_yaml("a: 5e8\nb: '5'\nc: null\nd: [1, 0.5, true, text]\ne: -3\nf: .inf\n", "run.yaml");
  EXPECT_EQ(document.value.at("a"), 5e8);
  EXPECT_EQ(document.value.at("b"), "5");
  EXPECT_TRUE(document.value.at("c").is_null());
  EXPECT_EQ(document.value.at("d"), Json({1, 0.5, true, "text"}));
  EXPECT_EQ(document.value.at("e"), -3);
  EXPECT_TRUE(std::isinf(document.value.at("f").get<double>()));
  EXPECT_EQ(document.place(Pointer("/d/3")).text(), "run.yaml:4:19");
}

TEST(Yaml, RefusesAKeyGivenTwiceABrokenFileAndASecondDocument) {
  const auto refused = [](const std::string& text) -> std::string {
    try {
      parse_yaml(text, "run.yaml");
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_THAT(refused("a: 1\nb: 2\na: 3\n"), testing::HasSubstr("'a' is given twice\n  where: run.yaml:3:1"));
  EXPECT_THAT(refused("a: [1, 2\n"), testing::HasSubstr("run.yaml:"));
  EXPECT_THAT(refused("a: 1\n---\nb: 2\n"), testing::HasSubstr("more than one YAML document"));
  EXPECT_THAT(refused("a: \xFF\n"), testing::Not(testing::HasSubstr("accepted")));
  EXPECT_THAT(refused("a: &x [*x]\n"), testing::Not(testing::HasSubstr("accepted")));
}

}  // namespace
}  // namespace tessera::config
