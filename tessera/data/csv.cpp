// Comma-separated values as RFC 4180 has them: the first record names the columns, each record has as many values,
// quoted values may hold commas, newlines and doubled quotes, lines end in LF or CRLF. Blank lines are skipped.
//
// Not Arrow's reader, although it is at hand: that one takes a file that ends inside a quoted value for a whole one,
// and counts records where a user looks for lines.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <optional>
#include <streambuf>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/input_file.h"
#include "tessera/data/readers.h"

namespace tessera::data {

namespace {

class CsvParser {
 public:
  CsvParser(std::streambuf& bytes, const std::string& path) : bytes_(bytes), path_(path) {}

  // The values of the next record, nothing at the end of the file.
  std::optional<std::vector<std::string>> next_record() {
    while (take_line_end()) {
    }
    if (at_end()) return std::nullopt;
    record_line_ = line_;
    std::vector<std::string> values;
    do values.push_back(take('"') ? quoted_value() : plain_value());
    while (take(','));
    if (!at_end() && !take_line_end()) {
      throw fault("text follows a closing quote", "double a quote inside a quoted value");
    }
    return values;
  }

  void skip_byte_order_mark() {
    for (const char expected : {'\xEF', '\xBB', '\xBF'}) {
      if (!take(expected)) return;
    }
  }

  Error fault(const std::string& what, const std::string& fix) const {
    return Error(ErrorKind::kData, {what, record_where(), fix});
  }
  std::string record_where() const { return fmt::format("{}:{}", path_, record_line_); }

 private:
  static constexpr int kEnd = std::char_traits<char>::eof();

  bool at_end() { return bytes_.sgetc() == kEnd; }

  bool take(char expected) {
    if (bytes_.sgetc() != static_cast<unsigned char>(expected)) return false;
    bytes_.sbumpc();
    return true;
  }

  // "\n" or "\r\n".
  bool take_line_end() {
    if (take('\r') && bytes_.sgetc() != '\n') bytes_.sungetc();
    if (!take('\n')) return false;
    ++line_;
    return true;
  }

  // A carriage return is part of it unless the line ends there.
  std::string plain_value() {
    std::string value;
    for (int next = bytes_.sgetc(); next != kEnd && next != ',' && next != '\n'; next = bytes_.snextc()) {
      if (next == '"') {
        throw fault("there is a quote inside an unquoted value",
                    "quote the whole value and double the quotes inside it");
      }
      value += static_cast<char>(next);
    }
    if (bytes_.sgetc() == '\n' && value.ends_with('\r')) value.pop_back();
    return value;
  }

  // The opening quote is taken.
  std::string quoted_value() {
    std::string value;
    while (true) {
      const int next = bytes_.sbumpc();
      if (next == kEnd) {
        throw fault("a quoted value is not closed before the end of the file",
                    "the file is truncated, or a quote is missing");
      }
      if (next == '"' && !take('"')) return value;
      line_ += next == '\n';
      value += static_cast<char>(next);
    }
  }

  std::streambuf& bytes_;
  const std::string& path_;
  int64_t line_ = 1;
  int64_t record_line_ = 1;  // where the record begins
};

void read_records(std::ifstream& file, const std::string& path, std::span<const Column> columns, const TakeRow& take) {
  CsvParser parser(*file.rdbuf(), path);
  parser.skip_byte_order_mark();
  const std::vector<std::string> names = parser.next_record().value_or(std::vector<std::string>());
  std::vector<size_t> places;
  for (const Column& column : columns) {
    const auto found = std::find(names.begin(), names.end(), column.name);
    if (found == names.end()) throw missing_column(column.name, names, parser.record_where());
    places.push_back(static_cast<size_t>(found - names.begin()));
  }
  std::vector<std::string> values(columns.size());
  while (const auto record = parser.next_record()) {
    if (record->size() != names.size()) {
      throw parser.fault(
          fmt::format("the record has {} values, but there are {} columns", record->size(), names.size()),
          "quote values that contain a comma");
    }
    for (size_t i = 0; i < places.size(); ++i) values[i] = (*record)[places[i]];
    take(values);
  }
}

}  // namespace

void read_csv(const std::string& path, std::span<const Column> columns, const TakeRow& take) {
  std::ifstream file = open_input_file(path);
  try {
    read_records(file, path, columns, take);
  } catch (const std::ios_base::failure&) {  // a drive's error, which a buffer throws where a stream would note it
    throw Error(ErrorKind::kData, {"the file cannot be read: " + errno_text(errno), path, "check the drive"});
  }
}

}  // namespace tessera::data
