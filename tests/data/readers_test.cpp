#include "tessera/data/readers.h"

#include <arrow/array/builder_binary.h>
#include <arrow/array/builder_primitive.h>
#include <arrow/io/file.h>
#include <arrow/table.h>
#include <gmock/gmock.h>
#include <parquet/arrow/writer.h>
#include <sys/resource.h>

#include "tessera/base/error.h"
#include "tessera/data/reader.h"
#include "tests/data/tiny_folder.h"

namespace tessera::data::readers_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const char* const kNull = nullptr;

// Columns "text" with the given texts (kNull: a null) and "length" with their number.
void write_parquet(const std::string& path, const std::vector<const char*>& texts) {
  arrow::StringBuilder text;
  arrow::Int64Builder length;
  for (const char* value : texts) {
    ASSERT_TRUE((value == nullptr ? text.AppendNull() : text.Append(value)).ok());
    ASSERT_TRUE(length.Append(1).ok());
  }
  const auto schema = arrow::schema({arrow::field("text", arrow::utf8()), arrow::field("length", arrow::int64())});
  const auto table = arrow::Table::Make(schema, {*text.Finish(), *length.Finish()});
  const auto file = *arrow::io::FileOutputStream::Open(path);
  ASSERT_TRUE(parquet::arrow::WriteTable(*table, arrow::default_memory_pool(), file).ok());
  ASSERT_TRUE(file->Close().ok());
}

// Writes a file of this format with the texts, all of which are without quotes, commas and newlines.
void write_rows(const std::string& format, const std::string& path, const std::vector<const char*>& texts) {
  if (format == "parquet") return write_parquet(path, texts);
  std::ofstream file(path);
  if (format == "csv") file << "length,text\n";
  for (const std::string text : texts) {
    if (format == "csv") file << "1," << text << "\n";
    if (format == "jsonl" || format == "json") file << R"({"length": 1, "text": ")" << text << "\"}\n";
    if (format == "txt") file << text << "\n";
  }
}

class AllReaders : public testing::TestWithParam<std::string> {
 protected:
  std::string path() const { return folder_.file("rows." + GetParam()); }
  TinyFolder folder_;
};

// All but txt, which has no columns and of which each part is a text again.
class ReadersOfColumns : public AllReaders {};

TEST_P(AllReaders, ReadTheRowsInOrder) {
  write_rows(GetParam(), path(), {"one", "zwei ä", "三"});
  EXPECT_THAT(read_texts(path(), "text"), ElementsAre("one", "zwei ä", "三"));
}

TEST_P(AllReaders, KeepAnEmptyRow) {
  write_rows(GetParam(), path(), {"one", "", "three"});
  EXPECT_THAT(read_texts(path(), "text"), ElementsAre("one", "", "three"));
}

TEST_P(AllReaders, RefuseAFileThatIsNotThere) {
  const ErrorReport report = report_of(ErrorKind::kData, [&] { read_texts(path(), "text"); });
  EXPECT_EQ(report.what, "no such file");
  EXPECT_EQ(report.where, path());
}

TEST_P(AllReaders, SayWhatTheSystemSaysWhereAFileCannotBeOpened) {
  write_rows(GetParam(), path(), {"one"});
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{.rlim_cur = 0, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const ErrorReport report = report_of(ErrorKind::kData, [&] { read_texts(path(), "text"); });
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_THAT(report.what, HasSubstr("Too many open files"));
}

TEST_P(AllReaders, RefuseAnEmptyFileAndOneWithoutRows) {
  folder_.write("rows." + GetParam(), "");
  EXPECT_EQ(report_of(ErrorKind::kData, [&] { read_texts(path(), "text"); }).what, "the file is empty");
  write_rows(GetParam(), path(), {});
  if (GetParam() == "parquet" || GetParam() == "csv") {
    EXPECT_EQ(report_of(ErrorKind::kData, [&] { read_texts(path(), "text"); }).what, "the file has no rows");
  }
}

TEST_P(ReadersOfColumns, NameTheColumnsThatThereAreAndTheNearest) {
  write_rows(GetParam(), path(), {"one"});
  const ErrorReport report = report_of(ErrorKind::kData, [&] { read_texts(path(), "texts"); });
  EXPECT_EQ(report.what, "there is no column 'texts'");
  EXPECT_THAT(report.where, HasSubstr(path()));
  EXPECT_THAT(report.fix, HasSubstr("did you mean 'text'? columns: "));
  EXPECT_THAT(report.fix, HasSubstr("length"));
}

TEST_P(AllReaders, RefuseARowThatIsNotUtf8) {
  write_rows(GetParam(), path(), {"one", "\xFF\xFE"});
  EXPECT_THAT(report_of(ErrorKind::kData, [&] { read_texts(path(), "text"); }).where, HasSubstr(path()));
}

TEST_P(ReadersOfColumns, RefuseAFileTornInTheMiddleOfAValue) {
  write_rows(GetParam(), path(), {"one", "\"two"});  // csv and jsonl: an opening quote too many or never closed
  if (GetParam() == "parquet") std::filesystem::resize_file(path(), std::filesystem::file_size(path()) / 2);
  EXPECT_THAT(report_of(ErrorKind::kData, [&] { read_texts(path(), "text"); }).where, HasSubstr(path()));
}

TEST_P(ReadersOfColumns, ReadLabelsThatAreTextOrWholeNumbers) {
  write_rows(GetParam(), path(), {"yes", "no"});
  EXPECT_THAT(read_labels(path(), "text"), ElementsAre("yes", "no"));
  EXPECT_THAT(read_labels(path(), "length"), ElementsAre("1", "1"));
  EXPECT_EQ(report_of(ErrorKind::kData, [&] { read_labels(path(), "lenght"); }).what, "there is no column 'lenght'");
}

TEST_P(ReadersOfColumns, ReadSeveralColumnsAtOnceInTheOrderThatIsAsked) {
  write_rows(GetParam(), path(), {"one", "two"});
  const Column columns[] = {{"text"}, {.name = "length", .holds_labels = true}, {"text"}};
  std::vector<std::string> rows;
  for_each_row(path(), columns, [&](std::span<std::string> values) {
    ASSERT_EQ(values.size(), 3u);
    rows.push_back(values[0] + " " + values[1] + " " + values[2]);
    for (std::string& value : values) const std::string taken = std::move(value);
  });
  EXPECT_THAT(rows, ElementsAre("one 1 one", "two 1 two"));
  const Column missing[] = {{"text"}, {"texts"}};
  EXPECT_EQ(report_of(ErrorKind::kData, [&] { for_each_row(path(), missing, [](auto) {}); }).what,
            "there is no column 'texts'");
}

TEST(ReadSeveralColumns, OfATextFileAreRefused) {
  TinyFolder folder;
  folder.write("rows.txt", "one\n");
  const Column columns[] = {{"source"}, {"target"}};
  EXPECT_EQ(report_of(ErrorKind::kData, [&] { for_each_row(folder.file("rows.txt"), columns, [](auto) {}); }).what,
            "a .txt file has one text a row, and no columns");
}

TEST(ReadLabels, OfATextFileAreRefused) {
  TinyFolder folder;
  folder.write("rows.txt", "one\n");
  EXPECT_THAT(report_of(ErrorKind::kData, [&] { read_labels(folder.file("rows.txt"), "label"); }).what,
              HasSubstr("a .txt file has texts alone"));
}

TEST(ReadLabels, OfJsonAreTruthValuesTooButNoOtherNumbers) {
  TinyFolder folder;
  folder.write("rows.jsonl", "{\"label\": true}\n{\"label\": false}\n");
  EXPECT_THAT(read_labels(folder.file("rows.jsonl"), "label"), ElementsAre("true", "false"));
  for (const char* const wrong : {"0.5", "null", "[1]"}) {
    folder.write("rows.jsonl", std::string("{\"label\": ") + wrong + "}\n");
    const ErrorReport report = report_of(ErrorKind::kData, [&] { read_labels(folder.file("rows.jsonl"), "label"); });
    EXPECT_EQ(report.what, std::string("'label' is ") + wrong + ", which is no label");
    EXPECT_THAT(report.where, HasSubstr("rows.jsonl:1"));
  }
}

std::vector<std::string> formats() { return readers().names(); }

std::vector<std::string> formats_with_columns() {
  std::vector<std::string> names = formats();
  std::erase(names, "txt");
  return names;
}

INSTANTIATE_TEST_SUITE_P(Formats, AllReaders, testing::ValuesIn(formats()),
                         [](const auto& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(Formats, ReadersOfColumns, testing::ValuesIn(formats_with_columns()),
                         [](const auto& info) { return info.param; });

TEST(ReadTexts, RefusesAnExtensionThatNoReaderTakes) {
  const TinyFolder folder;
  const std::string path = folder.write("rows.jsonll", "x");
  const ErrorReport report = report_of(ErrorKind::kUsage, [&] { read_texts(path, "text"); });
  EXPECT_THAT(report.fix, HasSubstr("did you mean 'jsonl'?"));
}

TEST(ReadTexts, RefusesAFolder) {
  const TinyFolder folder;
  EXPECT_EQ(report_of(ErrorKind::kData, [&] { read_texts(folder.path(), "text"); }).what, "it is a folder");
}

TEST(Parquet, RefusesANullAndNamesItsRow) {
  const TinyFolder folder;
  write_parquet(folder.file("a.parquet"), {"one", "two", kNull});
  EXPECT_EQ(report_of(ErrorKind::kData, [&] { read_texts(folder.file("a.parquet"), "text"); }).what,
            "'text' is null in row 3");
}

TEST(Parquet, RefusesAColumnThatHoldsNoStrings) {
  const TinyFolder folder;
  write_parquet(folder.file("a.parquet"), {"one"});
  EXPECT_EQ(report_of(ErrorKind::kData, [&] { read_texts(folder.file("a.parquet"), "length"); }).what,
            "the column 'length' holds int64, not strings");
}

TEST(Jsonl, NamesTheLineThatIsBroken) {
  const TinyFolder folder;
  const std::string path = folder.write("a.jsonl", "{\"text\": \"one\"}\n\n{\"text\": \"two\"\n");
  EXPECT_EQ(report_of(ErrorKind::kData, [&] { read_texts(path, "text"); }).where, path + ":3");
}

TEST(Jsonl, RefusesAValueThatIsNoString) {
  const TinyFolder folder;
  const std::string path = folder.write("a.jsonl", "{\"text\": \"one\"}\n{\"text\": null}\n");
  const ErrorReport report = report_of(ErrorKind::kData, [&] { read_texts(path, "text"); });
  EXPECT_EQ(report.what, "'text' is null, not a string");
  EXPECT_EQ(report.where, path + ":2");
}

// RFC 4180, section 2, rules 5 to 7.
TEST(Csv, UnquotesCommasNewlinesAndDoubledQuotes) {
  const TinyFolder folder;
  const std::string path = folder.write("a.csv", "id,text\r\n1,\"a \"\"b\"\", c\"\r\n2,\"d\r\ne\"\r\n3,\"\"\r\n4,f");
  EXPECT_THAT(read_texts(path, "text"), ElementsAre("a \"b\", c", "d\r\ne", "", "f"));
}

TEST(Csv, NamesTheLineOfARecordWithTooManyValues) {
  const TinyFolder folder;
  const std::string path =
      folder.write("a.csv", "id,text\n1,\"a\nb\"\n2,c,d\n");  // the first record takes lines 2 and 3
  const ErrorReport report = report_of(ErrorKind::kData, [&] { read_texts(path, "text"); });
  EXPECT_EQ(report.what, "the record has 3 values, but there are 2 columns");
  EXPECT_EQ(report.where, path + ":4");
}

TEST(Csv, RefusesQuotesWhereTheyCannotBe) {
  const TinyFolder folder;
  EXPECT_EQ(report_of(ErrorKind::kData, [&] { read_texts(folder.write("a.csv", "text\nsay \"a\"\n"), "text"); }).what,
            "there is a quote inside an unquoted value");
  EXPECT_EQ(report_of(ErrorKind::kData, [&] { read_texts(folder.write("b.csv", "text\n\"a\" b\n"), "text"); }).what,
            "text follows a closing quote");
}

TEST(Text, EachLineIsARowWithoutMarksAndCarriageReturns) {
  const TinyFolder folder;
  const std::string path = folder.write("a.txt", "\xEF\xBB\xBFone\r\n \t\r\n\n two \nthree");
  EXPECT_THAT(read_texts(path, "text"), ElementsAre("one", " \t", "", " two ", "three"));
}

TEST(ExpandFiles, APatternAndAFolderGiveTheirFilesInOrder) {
  const TinyFolder folder;
  for (const std::string name : {"b.txt", "a.txt", "c.jsonl", "notes.md"}) folder.write(name, "x\n");
  EXPECT_THAT(expand_files({folder.file("*.txt")}), ElementsAre(folder.file("a.txt"), folder.file("b.txt")));
  EXPECT_THAT(expand_files({folder.path()}),
              ElementsAre(folder.file("a.txt"), folder.file("b.txt"), folder.file("c.jsonl")));
  EXPECT_THAT(expand_files({folder.file("b.txt"), folder.file("nowhere.txt")}),
              ElementsAre(folder.file("b.txt"), folder.file("nowhere.txt")));
  folder.write("odd[1].txt", "x\n");  // a name that looks like a pattern
  EXPECT_THAT(expand_files({folder.file("odd[1].txt")}), ElementsAre(folder.file("odd[1].txt")));
}

TEST(ExpandFiles, NamesThePatternOrFolderThatGivesNothing) {
  const TinyFolder folder;
  EXPECT_EQ(report_of(ErrorKind::kData, [&] { expand_files({folder.file("*.txt")}); }).where, folder.file("*.txt"));
  EXPECT_EQ(report_of(ErrorKind::kData, [&] { expand_files({folder.path()}); }).what, "the folder has no text files");
}

}  // namespace
}  // namespace tessera::data::readers_test
