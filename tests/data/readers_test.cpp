#include <gmock/gmock.h>

#include <functional>

#include "tessera/base/error.h"
#include "tessera/data/dataset.h"
#include "tessera/data/reader.h"
#include "tests/data/tiny_vocabulary.h"

namespace tessera::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class Readers : public WithTinyVocabulary {
 protected:
  static std::string error_of(const std::function<void()>& call) {
    try {
      call();
    } catch (const Error& error) {
      EXPECT_EQ(exit_code(error.kind()), 2);
      return error.what();
    }
    return "no error";
  }
  std::string error_of_file(const std::string& name, const std::string& text) {
    const std::string path = write(name, text);
    return error_of([&] { read_texts(path, "text"); });
  }
};

TEST_F(Readers, TxtGivesTheLinesThatAreNotBlank) {
  EXPECT_THAT(read_texts(write("a.txt", "one\n\n  \ntwo\r\nthree"), "text"), ElementsAre("one", "two", "three"));
}

TEST_F(Readers, JsonlGivesTheKeyOfEachLine) {
  EXPECT_THAT(read_texts(write("a.jsonl", "{\"text\": \"one\"}\n{\"id\": 1, \"text\": \"\"}\n"), "text"),
              ElementsAre("one", ""));
  EXPECT_THAT(error_of_file("b.jsonl", "{\"text\": \"one\"}\n{\"text\": \n"), HasSubstr("b.jsonl:2"));
  EXPECT_THAT(error_of_file("c.jsonl", "{\"txt\": \"one\"}\n"), HasSubstr("txt"));
}

TEST_F(Readers, CsvGivesTheColumn) {
  EXPECT_THAT(read_texts(write("a.csv", "id,text\n1,one\n2,\"two, with a comma\nand a line\"\n"), "text"),
              ElementsAre("one", "two, with a comma\nand a line"));
  EXPECT_THAT(error_of_file("b.csv", "id,txt\n1,one\n"), HasSubstr("txt"));
}

TEST_F(Readers, WhatIsNoDataIsNamed) {
  EXPECT_THAT(error_of([&] { read_texts((folder_ / "gone.txt").string(), "text"); }), HasSubstr("gone.txt"));
  EXPECT_THAT(error_of_file("a.xyz", "x"), HasSubstr("xyz"));
  EXPECT_THAT(error_of_file("empty.jsonl", ""), HasSubstr("empty"));
  EXPECT_THAT(error_of_file("torn.parquet", "PAR1 and then nothing"), HasSubstr("torn.parquet"));
}

TEST_F(Readers, ADatasetWithoutAnyTextIsRefused) {
  const std::string path = write("blank.jsonl", "{\"text\": \"\"}\n{\"text\": \" \"}\n");
  EXPECT_THAT(error_of([&] { TokenizedDataset(*tokenizer_, {.files = {path}, .max_length = 8}); }),
              HasSubstr("blank.jsonl"));
}

TEST_F(Readers, SamplesAreCutToTheMaximumLength) {
  const std::string path = write("long.txt", "a b c d e f g h\n");
  const TokenizedDataset data(*tokenizer_, {.files = {path}, .max_length = 5});
  const auto sample = data.sample(0);
  EXPECT_THAT(std::vector<int32_t>(sample.begin(), sample.end()), ElementsAre(2, 5, 6, 7, 3));  // [CLS] a b c [SEP]
}

TEST_F(Readers, WordPiecesAreTheLongestFirst) {
  EXPECT_THAT(tokenizer_->encode("as A zz"), ElementsAre(5, 29, 5, 1));  // a ##s, lower-cased a, [UNK]
}

}  // namespace
}  // namespace tessera::data
