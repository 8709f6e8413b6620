// Parquet through Arrow C++: only the columns that are asked for are read.
#include <arrow/array.h>
#include <arrow/io/file.h>
#include <arrow/memory_pool.h>
#include <arrow/record_batch.h>
#include <arrow/type.h>
#include <fmt/format.h>
#include <parquet/arrow/reader.h>
#include <parquet/exception.h>

#include <algorithm>
#include <filesystem>
#include <numeric>

#include "tessera/base/error.h"
#include "tessera/base/input_file.h"
#include "tessera/data/readers.h"

namespace tessera::data {

namespace {

constexpr int64_t kMostMetadata = 100'000'000;  // bytes; Arrow's own limit

// What a file may become in memory: of what it says of its own sizes no more is believed.
constexpr int64_t kMostExpansion = 1000;  // times its bytes, as a column of few different texts does
constexpr int64_t kRoom = 4 << 20;        // bytes

constexpr int64_t kRowsAtOnce = 4096;

Error damaged(const std::string& message, const std::string& path) {
  return Error(ErrorKind::kData,
               {"the Parquet file cannot be read: " + message, path, "download or write the file again"});
}

void check(const arrow::Status& status, const std::string& path) {
  if (status.ok()) return;
  if (status.detail() == nullptr) throw damaged(status.message(), path);
  // What the system said: "[errno 5] Input/output error".
  throw Error(ErrorKind::kData, {"the Parquet file cannot be read: " + status.detail()->ToString(), path,
                                 "check the file's permissions and the disk"});
}

template <class StringArray>
void append_texts(const arrow::Array& chunk, std::vector<std::string>& texts) {
  const auto& strings = static_cast<const StringArray&>(chunk);
  for (int64_t i = 0; i < strings.length(); ++i) texts.emplace_back(strings.GetView(i));
}

// Pandas writes repeated strings as numbers into a dictionary.
void append_dictionary(const arrow::DictionaryArray& chunk, std::vector<std::string>& texts) {
  const auto& words = static_cast<const arrow::StringArray&>(*chunk.dictionary());
  for (int64_t i = 0; i < chunk.length(); ++i) texts.emplace_back(words.GetView(chunk.GetValueIndex(i)));
}

bool is_string_dictionary(const arrow::DataType& type) {
  return type.id() == arrow::Type::DICTIONARY &&
         static_cast<const arrow::DictionaryType&>(type).value_type()->id() == arrow::Type::STRING;
}

template <class NumberArray>
bool append_numbers(const arrow::Array& chunk, std::vector<std::string>& texts) {
  const auto& numbers = static_cast<const NumberArray&>(chunk);
  for (int64_t i = 0; i < numbers.length(); ++i) texts.push_back(std::to_string(numbers.Value(i)));
  return true;
}

// False for a type that labels cannot have.
bool append_labels(const arrow::Array& chunk, std::vector<std::string>& texts) {
  switch (chunk.type_id()) {
    case arrow::Type::INT64:
      return append_numbers<arrow::Int64Array>(chunk, texts);
    case arrow::Type::INT32:
      return append_numbers<arrow::Int32Array>(chunk, texts);
    case arrow::Type::INT16:
      return append_numbers<arrow::Int16Array>(chunk, texts);
    case arrow::Type::INT8:
      return append_numbers<arrow::Int8Array>(chunk, texts);
    case arrow::Type::UINT64:
      return append_numbers<arrow::UInt64Array>(chunk, texts);
    case arrow::Type::UINT32:
      return append_numbers<arrow::UInt32Array>(chunk, texts);
    case arrow::Type::UINT16:
      return append_numbers<arrow::UInt16Array>(chunk, texts);
    case arrow::Type::UINT8:
      return append_numbers<arrow::UInt8Array>(chunk, texts);
    case arrow::Type::BOOL: {
      const auto& truths = static_cast<const arrow::BooleanArray&>(chunk);
      for (int64_t i = 0; i < truths.length(); ++i) texts.emplace_back(truths.Value(i) ? "true" : "false");
      return true;
    }
    default:
      return false;
  }
}

// Names the row when one is null, and the type when it is not a string, nor that of a label where those are asked for.
// `first_row`: the number of the chunk's first.
std::vector<std::string> texts_of(const arrow::Array& chunk, const Column& asked, int64_t first_row,
                                  const std::string& path) {
  std::vector<std::string> texts;
  texts.reserve(static_cast<size_t>(chunk.length()));
  if (chunk.null_count() > 0) {
    int64_t i = 0;
    while (chunk.IsValid(i)) ++i;
    throw Error(ErrorKind::kData,
                {fmt::format("'{}' is null in row {}", asked.name, first_row + i + 1), path,
                 fmt::format("remove the row or give it a {}", asked.holds_labels ? "label" : "text")});
  }
  const arrow::DataType& type = *chunk.type();
  if (type.id() == arrow::Type::STRING) {
    append_texts<arrow::StringArray>(chunk, texts);
  } else if (type.id() == arrow::Type::LARGE_STRING) {
    append_texts<arrow::LargeStringArray>(chunk, texts);
  } else if (is_string_dictionary(type)) {
    append_dictionary(static_cast<const arrow::DictionaryArray&>(chunk), texts);
  } else if (!asked.holds_labels || !append_labels(chunk, texts)) {
    throw Error(ErrorKind::kData, {fmt::format("the column '{}' holds {}, not {}", asked.name, type.ToString(),
                                               asked.holds_labels ? "labels" : "strings"),
                                   path, asked.holds_labels ? "a label is a text, a whole number, true or false" : ""});
  }
  return texts;
}

// The place of the column among those of the file's own schema, which has a place for each part of a value.
int place_of(parquet::arrow::FileReader& reader, const Column& asked, const std::string& path) {
  std::shared_ptr<arrow::Schema> schema;
  check(reader.GetSchema(&schema), path);
  const int field = schema->GetFieldIndex(asked.name);
  if (field < 0) throw missing_column(asked.name, schema->field_names(), path);
  const int column = reader.parquet_reader()->metadata()->schema()->ColumnIndex(asked.name);
  if (column < 0) {  // it has parts
    throw Error(ErrorKind::kData,
                {fmt::format("the column '{}' holds {}, not {}", asked.name, schema->field(field)->type()->ToString(),
                             asked.holds_labels ? "labels" : "strings"),
                 path, ""});
  }
  return column;
}

void read_parquet_columns(const std::string& path, std::span<const Column> asked, const TakeRow& take) {
  require_input_file(path);
  const auto file_bytes = static_cast<int64_t>(std::filesystem::file_size(path));
  // Arrow's own pool reserves a gibibyte of addresses, which counts where a process is limited (RLIMIT_DATA,
  // RLIMIT_AS).
  arrow::MemoryPool* const system = arrow::system_memory_pool();
  arrow::CappedMemoryPool capped(system, system->bytes_allocated() + kRoom + kMostExpansion * file_bytes);
  arrow::MemoryPool* const pool = &capped;
  auto file = arrow::io::ReadableFile::Open(path, pool);
  check(file.status(), path);
  parquet::arrow::FileReaderBuilder builder;
  parquet::ReaderProperties properties(pool);
  properties.set_page_checksum_verification(true);  // of pages that have one
  // What the metadata claims of its own texts and lists is believed no further than the file is long; an element of a
  // list takes four bytes at least.
  const auto bytes = static_cast<int32_t>(std::min(file_bytes, kMostMetadata));
  properties.set_thrift_string_size_limit(bytes);
  properties.set_thrift_container_size_limit(bytes / 4);
  check(builder.Open(*file, properties), path);
  parquet::ArrowReaderProperties how(/*use_threads=*/false);
  how.set_pre_buffer(false);  // it reads ahead on threads of Arrow's, which would outlive the pool
  how.set_batch_size(kRowsAtOnce);
  builder.properties(how);
  std::unique_ptr<parquet::arrow::FileReader> opened;
  check(builder.memory_pool(pool)->Build(&opened), path);
  parquet::arrow::FileReader& reader = *opened;

  std::vector<int> columns;
  for (const Column& column : asked) columns.push_back(place_of(reader, column, path));
  std::vector<int> groups(static_cast<size_t>(reader.num_row_groups()));
  std::iota(groups.begin(), groups.end(), 0);
  const auto batches = reader.GetRecordBatchReader(groups, columns);
  check(batches.status(), path);
  int64_t rows = 0;
  std::vector<std::string> values(asked.size());
  while (true) {
    std::shared_ptr<arrow::RecordBatch> batch;
    check((*batches)->ReadNext(&batch), path);
    if (batch == nullptr) break;
    std::vector<std::vector<std::string>> texts;  // of each column
    for (const Column& column : asked)
      texts.push_back(texts_of(*batch->GetColumnByName(column.name), column, rows, path));
    for (size_t row = 0; row < texts.front().size(); ++row) {
      for (size_t i = 0; i < texts.size(); ++i) values[i] = std::move(texts[i][row]);
      take(values);
    }
    rows += batch->num_rows();
  }
}

}  // namespace

void read_parquet(const std::string& path, std::span<const Column> columns, const TakeRow& take) {
  try {
    read_parquet_columns(path, columns, take);
  } catch (const parquet::ParquetException& error) {
    throw damaged(error.what(), path);
  }
}

}  // namespace tessera::data
