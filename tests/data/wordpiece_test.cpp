#include <gmock/gmock.h>

#include <array>
#include <nlohmann/json.hpp>

#include "tessera/data/bert_normalizer.h"
#include "tessera/data/tokenizer.h"
#include "tessera/data/unicode.h"
#include "tests/data/tiny_folder.h"

namespace tessera::data::wordpiece_test {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::unique_ptr<Tokenizer> from_vocab(const std::vector<std::string>& more, const json& config = json::object()) {
  const TinyFolder folder;
  folder.write("vocab.txt", tiny_vocab_txt(more));
  folder.write("tokenizer_config.json", config.dump());
  return load_tokenizer(folder.path());
}

// A tokenizer.json with the pieces [PAD] 0, [UNK] 1, [CLS] 2, [SEP] 3, [MASK] 4, un 5, ##aff 6, ##able 7, a 8, b 9.
json tokenizer_json() {
  return json::parse(R"({
    "added_tokens": [
      {"id": 0, "special": true, "content": "[PAD]", "normalized": false},
      {"id": 2, "special": true, "content": "[CLS]", "normalized": false},
      {"id": 3, "special": true, "content": "[SEP]", "normalized": false},
      {"id": 4, "special": true, "content": "[MASK]", "normalized": false}],
    "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
                   "strip_accents": null, "lowercase": true},
    "pre_tokenizer": {"type": "BertPreTokenizer"},
    "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
              "max_input_chars_per_word": 100,
              "vocab": {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4, "un": 5, "##aff": 6,
                        "##able": 7, "a": 8, "b": 9}}})");
}

std::unique_ptr<Tokenizer> from_json(const json& tokenizer) {
  const TinyFolder folder;
  folder.write("tokenizer.json", tokenizer.dump());
  return load_tokenizer(folder.path());
}

std::string normalized(const std::string& text, const BertNormalizerOptions& options = {}) {
  std::string bytes;
  append_utf8(BertNormalizer(options).normalize(decode_utf8(text)), bytes);
  return bytes;
}

// The example of the BERT paper's code, tokenization.py: "unaffable" -> ["un", "##aff", "##able"].
TEST(WordPiece, TakesTheLongestPieceFromTheLeft) {
  EXPECT_THAT(from_json(tokenizer_json())->encode("unaffable"), ElementsAre(5, 6, 7));
}

// id, begin and end of each token, in bytes.
std::vector<std::array<size_t, 3>> places(const std::vector<TokenPlace>& tokens) {
  std::vector<std::array<size_t, 3>> result;
  for (const auto& [id, begin, end] : tokens) result.push_back({static_cast<size_t>(id), begin, end});
  return result;
}

// "É" takes two bytes, and "\xFF", which is no UTF-8, one; a word that is not covered is one token.
TEST(WordPiece, SaysWhereInTheGivenTextATokenStands) {
  using Place = std::array<size_t, 3>;
  const auto tokenizer = tiny_tokenizer();  // a 5, b 6, e 9, ##a 31, ##b 32
  EXPECT_THAT(places(tokenizer->encode_with_offsets("Éa \xFF b[MASK]ß")),
              ElementsAre(Place{9, 0, 2}, Place{31, 2, 3}, Place{6, 6, 7}, Place{4, 7, 13}, Place{1, 13, 15}));
  EXPECT_THAT(places(tokenizer->encode_framed("ab")),
              ElementsAre(Place{2, 0, 0}, Place{5, 0, 1}, Place{32, 1, 2}, Place{3, 0, 0}));
  EXPECT_THAT(tokenizer->encode_with_offsets(""), IsEmpty());
}

TEST(WordPiece, AWordThatCannotBeCoveredIsOneUnknownToken) {
  EXPECT_THAT(from_json(tokenizer_json())->encode("a unaffably b"), ElementsAre(8, 1, 9));
}

TEST(WordPiece, AWordAboveTheLimitOfCharactersIsUnknown) {
  const auto tokenizer = tiny_tokenizer();
  EXPECT_EQ(tokenizer->encode(std::string(100, 'a')).size(), 100u);
  EXPECT_THAT(tokenizer->encode(std::string(101, 'a')), ElementsAre(1));
}

TEST(WordPiece, AnEmptyTextHasNoTokens) {
  EXPECT_THAT(tiny_tokenizer()->encode(""), IsEmpty());
  EXPECT_THAT(tiny_tokenizer()->encode(" \t\r\n\u00A0\u2003"), IsEmpty());
}

TEST(WordPiece, PunctuationAndIdeographsAreWordsOfTheirOwn) {
  const auto tokenizer = from_vocab({"!", "中", "文", "—"});  // 57, 58, 59, 60
  EXPECT_THAT(tokenizer->encode("a!b"), ElementsAre(5, 57, 6));
  EXPECT_THAT(tokenizer->encode("a中文b"), ElementsAre(5, 58, 59, 6));
  EXPECT_THAT(tokenizer->encode("a—b"), ElementsAre(5, 60, 6));
}

TEST(WordPiece, ASpecialTokenSpeltOutIsItsId) {
  EXPECT_THAT(tiny_tokenizer()->encode("a[MASK]b [SEP]"), ElementsAre(5, 4, 6, 3));
  EXPECT_THAT(tiny_tokenizer()->encode("[mask]"),
              ElementsAre(1, 17, 31, 49, 41, 1));  // brackets are not in the vocabulary
}

TEST(WordPiece, AddedTokensObeyTheirFlags) {
  json tokenizer = tokenizer_json();
  tokenizer["added_tokens"].push_back({{"id", 10}, {"content", "Ä+"}, {"special", false}, {"normalized", true}});
  tokenizer["added_tokens"].push_back(
      {{"id", 11}, {"content", "<x>"}, {"special", true}, {"normalized", false}, {"lstrip", true}, {"rstrip", true}});
  tokenizer["added_tokens"].push_back(
      {{"id", 12}, {"content", "ab"}, {"special", false}, {"normalized", false}, {"single_word", true}});
  const auto loaded = from_json(tokenizer);
  EXPECT_EQ(loaded->vocab_size(), 13);
  EXPECT_THAT(loaded->encode("b ä+ b"), ElementsAre(9, 10, 9));  // "Ä+" and the text are both normalised to "a+"
  EXPECT_THAT(loaded->encode("b  <x>  b"), ElementsAre(9, 11, 9));
  EXPECT_THAT(loaded->encode("ab b"), ElementsAre(12, 9));
  EXPECT_THAT(loaded->encode("abb"), ElementsAre(1));
  EXPECT_TRUE(loaded->is_special(11));
  EXPECT_FALSE(loaded->is_special(10));
}

TEST(WordPiece, KnowsItsSpecialTokensAndItsSize) {
  const auto tokenizer = tiny_tokenizer();
  EXPECT_EQ(tokenizer->vocab_size(), 57);
  const SpecialIds& ids = tokenizer->special_ids();
  EXPECT_THAT((std::vector{ids.pad, ids.unk, ids.cls, ids.sep, ids.mask}), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_TRUE(tokenizer->is_special(4));
  EXPECT_FALSE(tokenizer->is_special(5));
}

TEST(WordPiece, TheConfigNamesTheSpecialTokens) {
  const auto tokenizer = from_vocab({"<s>"}, {{"cls_token", {{"content", "<s>"}, {"lstrip", false}}}});
  EXPECT_EQ(tokenizer->special_ids().cls, 57);
  EXPECT_THAT(tokenizer->encode("a<s>b"), ElementsAre(5, 57, 6));
}

TEST(WordPiece, FilesAreThoseOfTheFolder) {
  const TinyFolder folder;
  folder.write("vocab.txt", tiny_vocab_txt());
  folder.write("config.json", "{}");  // the model's, not the tokenizer's
  EXPECT_THAT(load_tokenizer(folder.path())->files(), ElementsAre(folder.file("vocab.txt")));
}

TEST(BertNormalizer, CleansControlCharactersAndWhitespace) {
  EXPECT_EQ(normalized(std::string("a\0b\x07"
                                   "c\uFFFDd\u200Be\tf\ng\u3000h",
                                   21)),
            "abcde f g h");
}

TEST(BertNormalizer, StripsAccentsWrittenEitherWay) {
  EXPECT_EQ(normalized("Élan E\u0301lan Ångström"), "elan elan angstrom");
  EXPECT_EQ(normalized("É", {.strip_accents = false}), "é");
  EXPECT_EQ(normalized("É", {.lowercase = false}), "E");
}

// Unicode, SpecialCasing.txt: U+0130 becomes two characters; ß has no other lower case.
TEST(BertNormalizer, LowersTheTurkishDottedI) {
  EXPECT_EQ(normalized("İIß", {.strip_accents = false}), "i\u0307iß");
  EXPECT_EQ(normalized("İIß"), "iiß");
}

TEST(LoadTokenizer, RefusesAFolderWithoutATokenizer) {
  const TinyFolder folder;
  EXPECT_EQ(report_of(ErrorKind::kData, [&] { load_tokenizer(folder.path()); }).what, "the folder has no tokenizer");
  EXPECT_EQ(report_of(ErrorKind::kData, [&] { load_tokenizer(folder.file("none")); }).what, "no such folder");
}

TEST(LoadTokenizer, RefusesATornTokenizerJsonAndSaysWhere) {
  const TinyFolder folder;
  folder.write("tokenizer.json", tokenizer_json().dump(2).substr(0, 300));
  const ErrorReport report = report_of(ErrorKind::kData, [&] { load_tokenizer(folder.path()); });
  EXPECT_THAT(report.what, HasSubstr("line"));
  EXPECT_EQ(report.where, folder.file("tokenizer.json"));
}

TEST(LoadTokenizer, NamesAModelNormalizerOrPreTokenizerThatItDoesNotKnow) {
  json other = tokenizer_json();
  other["model"]["type"] = "WordLevel";
  EXPECT_EQ(report_of(ErrorKind::kData, [&] { from_json(other); }).what, "there is no tokenizer model 'WordLevel'");
  json nmt = tokenizer_json();
  nmt["normalizer"]["type"] = "Nmt";
  EXPECT_EQ(report_of(ErrorKind::kData, [&] { from_json(nmt); }).what, "the normalizer is \"Nmt\"");
  json bytes = tokenizer_json();
  bytes["pre_tokenizer"]["type"] = "ByteLevel";
  EXPECT_EQ(report_of(ErrorKind::kData, [&] { from_json(bytes); }).what, "the pre_tokenizer is \"ByteLevel\"");
}

TEST(LoadTokenizer, RefusesAVocabularyWithoutASpecialToken) {
  const TinyFolder folder;
  folder.write("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n");
  EXPECT_EQ(report_of(ErrorKind::kData, [&] { load_tokenizer(folder.path()); }).what,
            "the vocabulary has no special token '[MASK]'");
}

TEST(LoadTokenizer, RefusesIdsThatAreNoIds) {
  json negative = tokenizer_json();
  negative["model"]["vocab"]["a"] = -1;
  EXPECT_THAT(report_of(ErrorKind::kData, [&] { from_json(negative); }).what, HasSubstr("the id of token 'a' is -1"));
  json none = tokenizer_json();
  none["model"].erase("vocab");
  EXPECT_EQ(report_of(ErrorKind::kData, [&] { from_json(none); }).what, "the model has no vocabulary");
}

}  // namespace
}  // namespace tessera::data::wordpiece_test
