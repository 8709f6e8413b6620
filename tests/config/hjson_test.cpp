#include "tessera/config/hjson.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tessera/base/error.h"
#include "tessera/config/yaml_file.h"

namespace tessera::config::hjson_test {
namespace {

std::string refusal(const std::string& text) {
  try {
    parse_hjson(text, "ds.json");
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Hjson, TakesCommentsAndTrailingCommas) {
  const Document document = parse_hjson("// head\n{ \"a\": 1, /* b\n */ \"c\": [1, 2,], // end\n}\n", "ds.json");
  EXPECT_EQ(document.value, Json({{"a", 1}, {"c", {1, 2}}}));
}

TEST(Hjson, LeavesCommentSignsInTextAlone) {
  const Document document = parse_hjson(R"({"url": "http://host/*path*/", "quote": "\"//\""})", "ds.json");
  EXPECT_EQ(document.value.at("url"), "http://host/*path*/");
  EXPECT_EQ(document.value.at("quote"), "\"//\"");
}

// Counted by hand; the two characters of the comment take six bytes, and columns count characters.
TEST(Hjson, KnowsThePlaceOfEveryKey) {
  const Document document = parse_hjson("{\n  \"a\": {\"b\": 1},\n  /* 配置 */ \"c\": [5, 6]\n}", "ds.json");
  EXPECT_EQ(document.place(Pointer("/a")).text(), "ds.json:2:3");
  EXPECT_EQ(document.place(Pointer("/a/b")).text(), "ds.json:2:9");
  EXPECT_EQ(document.place(Pointer("/c")).text(), "ds.json:3:12");
  EXPECT_EQ(document.place(Pointer("/c/1")).text(), "ds.json:3:21");
  EXPECT_EQ(document.place(Pointer("/a/missing")).text(), "ds.json:2:3");  // the nearest that is there
}

TEST(Hjson, RefusesAKeyGivenTwiceAndNamesBothPlaces) {
  const std::string text = refusal("{\"a\": {\"b\": 1,\n \"b\": 2}}");
  EXPECT_THAT(text, testing::HasSubstr("'a.b' is given twice"));
  EXPECT_THAT(text, testing::HasSubstr("ds.json:2:2"));
  EXPECT_THAT(text, testing::HasSubstr("ds.json:1:8"));
}

TEST(Hjson, RefusesWhatCannotBeReadAtItsPlace) {
  EXPECT_THAT(refusal(""), testing::HasSubstr("ds.json:1:1"));
  EXPECT_THAT(refusal("{\"a\" 1}"), testing::HasSubstr("ds.json:1:6"));
  EXPECT_THAT(refusal("{a 1}"), testing::HasSubstr("ds.json:1:4"));
  EXPECT_THAT(refusal("{\"a\": 1,\n \"b\": }"), testing::HasSubstr("ds.json:2:7"));
  EXPECT_THAT(refusal("a: 1\nb"), testing::HasSubstr("expected ':' after the key 'b'"));
  EXPECT_THAT(refusal("a: 1\n]"), testing::HasSubstr("expected a key here"));
  EXPECT_THAT(refusal("{a: '''x"), testing::HasSubstr("never closed"));
  EXPECT_THAT(refusal("{a: x\xFF\n}"), testing::HasSubstr("UTF-8"));
  EXPECT_THAT(refusal("{\"a\": 01}"), testing::HasSubstr("'01' is not a JSON number"));
  EXPECT_THAT(refusal("{\"a\": 1e}"), testing::HasSubstr("is not a JSON number"));
  EXPECT_THAT(refusal("{\"a\": True}"), testing::HasSubstr("'True' is Python"));
  EXPECT_THAT(refusal("{\"a\": \"x\n\"}"), testing::HasSubstr("never closed"));
  EXPECT_THAT(refusal("{\"a\": \"\\q\"}"), testing::HasSubstr("not valid JSON"));
  EXPECT_THAT(refusal("{\"a\": [1, 2}"), testing::HasSubstr("',' or ']'"));
  EXPECT_THAT(refusal("{\"a\": 1"), testing::HasSubstr("this '{' is never closed"));
  EXPECT_THAT(refusal("{} {}"), testing::HasSubstr("after the end"));
  EXPECT_THAT(refusal("{\"a\": 1 /* "), testing::HasSubstr("comment is never closed"));
  EXPECT_THAT(refusal(","), testing::HasSubstr("expected a key here"));
  EXPECT_THAT(refusal("{\"a\": \"\xFF\"}"), testing::HasSubstr("UTF-8"));
  EXPECT_THAT(refusal(std::string(100'000, '[')), testing::HasSubstr("levels deep"));
}

// The values are those that the Python package hjson 3.1 gives for the same text.
TEST(Hjson, TakesWhatPeopleLeaveOut) {
  const auto value = [](const std::string& text) { return parse_hjson(text, "ds.json").value; };
  EXPECT_EQ(value("a: 1\nb: {c: text with spaces, and a comma\n}\n"),
            Json({{"a", 1}, {"b", {{"c", "text with spaces, and a comma"}}}}));
  EXPECT_EQ(value("{ # head\n  betas: [0.9\n 0.99]\n  on: true\n}"), Json({{"betas", {0.9, 0.99}}, {"on", true}}));
  EXPECT_EQ(value("{a: 1, b: 2,}"), Json({{"a", 1}, {"b", 2}}));
  EXPECT_EQ(value("{'a': 'it\\'s \"x\"'}"), Json({{"a", "it's \"x\""}}));
  EXPECT_EQ(value("{a: '''\n  one\n  two\n'''}"), Json({{"a", "one\ntwo"}}));
  EXPECT_EQ(value("path: /a//b # c"), Json({{"path", "/a//b # c"}}));  // text goes on to the end of its line
  EXPECT_EQ(value("version: 1.2.3\nname: 3 layers"), Json({{"version", "1.2.3"}, {"name", "3 layers"}}));
  EXPECT_TRUE(std::isnan(value("{a: NaN}").at("a").get<double>()));
}

// Every beginning of a valid file is either refused with an Error or complete; none crashes or hangs.
TEST(Hjson, SurvivesAFileThatIsCutOffAnywhere) {
  const std::string whole = "{\"a\": [1, -2.5e3, true, null], /* c */ \"b\": {\"c\": \"x\\\"y\"}, // d\n}";
  for (size_t length = 0; length < whole.size(); ++length) {
    EXPECT_NE(refusal(whole.substr(0, length)), "accepted") << length;
  }
  EXPECT_EQ(refusal(whole), "accepted");
}

TEST(Hjson, ReadsWhatPythonWritesForInfinity) {
  EXPECT_TRUE(std::isinf(parse_hjson("{\"a\": Infinity}", "").value.at("a").get<double>()));
  EXPECT_LT(parse_hjson("[-Infinity]", "").value.at(0).get<double>(), 0);
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
  // Of which YAML::LoadAll makes documents until there is no memory.
  EXPECT_THAT(refused("a: 1}\n, b: 2}\n"), testing::HasSubstr("run.yaml:"));
  EXPECT_THAT(refused("}"), testing::HasSubstr("run.yaml:1:1"));
  EXPECT_THAT(refused("a: \xFF\n"), testing::Not(testing::HasSubstr("accepted")));
  EXPECT_THAT(refused("a: &x [*x]\n"), testing::Not(testing::HasSubstr("accepted")));
}

}  // namespace
}  // namespace tessera::config::hjson_test
