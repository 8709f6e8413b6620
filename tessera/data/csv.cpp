// Comma-separated values as RFC 4180 has them: the first record names the columns, each record has as many values,
// quoted values may hold commas, newlines and doubled quotes, lines end in LF or CRLF. Blank lines are skipped.
//
// Not Arrow's reader, although it is at hand: that one takes a file that ends inside a quoted value for a whole one,
// and counts records where a user looks for lines.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/base/input_file.h"
#include "tessera/data/readers.h"

namespace tessera::data {

namespace {

class CsvParser {
 public:
  CsvParser(std::string_view content, const std::string& path) : rest_(content), path_(path) {}

  // The values of the next record, nothing at the end of the file.
  std::optional<std::vector<std::string>> next_record() {
    while (take('\n') || take("\r\n")) ++line_;
    if (rest_.empty()) return std::nullopt;
    record_line_ = line_;
    std::vector<std::string> values;
    do values.push_back(take('"') ? quoted_value() : plain_value());
    while (take(','));
    if (!rest_.empty() && !take('\n') && !take("\r\n")) {
      throw fault("text follows a closing quote", "double a quote inside a quoted value");
    }
    ++line_;
    return values;
  }

  Error fault(const std::string& what, const std::string& fix) const {
    return Error(ErrorKind::kData, {what, record_where(), fix});
  }
  std::string record_where() const { return fmt::format("{}:{}", path_, record_line_); }

 private:
  bool take(std::string_view expected) {
    if (!rest_.starts_with(expected)) return false;
    rest_.remove_prefix(expected.size());
    return true;
  }
  bool take(char expected) { return take(std::string_view(&expected, 1)); }

  std::string plain_value() {
    size_t length = std::min(rest_.find_first_of(",\n"), rest_.size());
    if (length < rest_.size() && rest_[length] == '\n' && length > 0 && rest_[length - 1] == '\r') --length;
    const std::string_view value = rest_.substr(0, length);
    if (value.find('"') != std::string_view::npos) {
      throw fault("there is a quote inside an unquoted value", "quote the whole value and double the quotes inside it");
    }
    rest_.remove_prefix(length);
    return std::string(value);
  }

  // The opening quote is taken.
  std::string quoted_value() {
    std::string value;
    while (true) {
      const size_t length = rest_.find('"');
      if (length == std::string_view::npos) {
        throw fault("a quoted value is not closed before the end of the file",
                    "the file is truncated, or a quote is missing");
      }
      value += rest_.substr(0, length);
      line_ += std::count(rest_.begin(), rest_.begin() + static_cast<std::ptrdiff_t>(length), '\n');
      rest_.remove_prefix(length + 1);
      if (!take('"')) return value;
      value += '"';
    }
  }

  std::string_view rest_;
  const std::string& path_;
  int64_t line_ = 1;
  int64_t record_line_ = 1;  // where the record begins
};

}  // namespace

std::vector<std::string> read_csv(const std::string& path, const std::string& text_column) {
  const std::string content = read_input_file(path, ErrorKind::kData, std::numeric_limits<uint64_t>::max());
  std::string_view text = content;
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);

  CsvParser parser(text, path);
  const std::vector<std::string> columns = parser.next_record().value_or(std::vector<std::string>());
  const auto found = std::find(columns.begin(), columns.end(), text_column);
  if (found == columns.end()) throw missing_column(text_column, columns, parser.record_where());
  const auto column = static_cast<size_t>(found - columns.begin());

  std::vector<std::string> rows;
  while (auto record = parser.next_record()) {
    if (record->size() != columns.size()) {
      throw parser.fault(
          fmt::format("the record has {} values, but there are {} columns", record->size(), columns.size()),
          "quote values that contain a comma");
    }
    rows.push_back(std::move((*record)[column]));
  }
  return rows;
}

}  // namespace tessera::data
