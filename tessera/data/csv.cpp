// CSV through Arrow C++ (RFC 4180: quoted values may hold commas, newlines and doubled quotes). All values are strings,
// and an empty one is an empty text.
#include <arrow/chunked_array.h>
#include <arrow/csv/api.h>
#include <arrow/io/file.h>
#include <arrow/table.h>
#include <arrow/type.h>
#include <fmt/format.h>

#include "tessera/data/columns.h"
#include "tessera/data/readers.h"

namespace tessera::data {

namespace {

void check(const arrow::Status& status, const std::string& path) {
  if (!status.ok()) {
    throw Error(ErrorKind::kData, {"the CSV file cannot be read: " + status.message(), path,
                                   "quote each value that holds a comma, a quote or a newline (RFC 4180)"});
  }
}

}  // namespace

std::vector<std::string> read_csv(const std::string& path, const std::string& text_column) {
  auto file = arrow::io::ReadableFile::Open(path);
  check(file.status(), path);
  auto reading = arrow::csv::ReadOptions::Defaults();
  reading.use_threads = false;  // also what makes Arrow name the row of an error
  auto parsing = arrow::csv::ParseOptions::Defaults();
  parsing.newlines_in_values = true;
  auto converting = arrow::csv::ConvertOptions::Defaults();
  converting.default_column_type = arrow::utf8();
  converting.check_utf8 = false;  // read_texts does, and only for the text column

  auto reader = arrow::csv::TableReader::Make(arrow::io::default_io_context(), *file, reading, parsing, converting);
  check(reader.status(), path);
  auto table = (*reader)->Read();
  check(table.status(), path);
  const int field = (*table)->schema()->GetFieldIndex(text_column);
  if (field < 0) throw missing_column(text_column, (*table)->schema()->field_names(), path);
  return texts_of(*(*table)->column(field), text_column, path);
}

}  // namespace tessera::data
