// Parquet through Arrow C++: only the text column is read.
#include <arrow/chunked_array.h>
#include <arrow/io/file.h>
#include <arrow/type.h>
#include <parquet/arrow/reader.h>
#include <parquet/exception.h>

#include "tessera/data/columns.h"
#include "tessera/data/readers.h"

namespace tessera::data {

namespace {

Error damaged(const std::string& message, const std::string& path) {
  return Error(ErrorKind::kData,
               {"the Parquet file cannot be read: " + message, path, "fetch or write the file again"});
}

void check(const arrow::Status& status, const std::string& path) {
  if (!status.ok()) throw damaged(status.message(), path);
}

std::vector<std::string> read_column(const std::string& path, const std::string& text_column) {
  auto file = arrow::io::ReadableFile::Open(path);
  check(file.status(), path);
  auto opened = parquet::arrow::OpenFile(*file, arrow::default_memory_pool());
  check(opened.status(), path);
  parquet::arrow::FileReader& reader = **opened;
  reader.set_use_threads(false);

  std::shared_ptr<arrow::Schema> schema;
  check(reader.GetSchema(&schema), path);
  const int field = schema->GetFieldIndex(text_column);
  if (field < 0) throw missing_column(text_column, schema->field_names(), path);
  std::shared_ptr<arrow::ChunkedArray> column;
  check(reader.ReadColumn(field, &column), path);
  return texts_of(*column, text_column, path);
}

}  // namespace

std::vector<std::string> read_parquet(const std::string& path, const std::string& text_column) {
  try {
    return read_column(path, text_column);
  } catch (const parquet::ParquetException& error) {
    throw damaged(error.what(), path);
  }
}

}  // namespace tessera::data
