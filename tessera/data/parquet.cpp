// Parquet through Arrow C++: only the text column is read.
#include <arrow/array.h>
#include <arrow/chunked_array.h>
#include <arrow/io/file.h>
#include <arrow/memory_pool.h>
#include <arrow/type.h>
#include <fmt/format.h>
#include <parquet/arrow/reader.h>
#include <parquet/exception.h>

#include <algorithm>
#include <filesystem>

#include "tessera/base/error.h"
#include "tessera/base/input_file.h"
#include "tessera/data/readers.h"

namespace tessera::data {

namespace {

constexpr int64_t kMostMetadata = 100'000'000;  // bytes; Arrow's own limit

// What a file may become in memory: of what it says of its own sizes no more is believed.
constexpr int64_t kMostExpansion = 1000;  // times its bytes, as a column of few different texts does
constexpr int64_t kRoom = 4 << 20;        // bytes

Error damaged(const std::string& message, const std::string& path) {
  return Error(ErrorKind::kData,
               {"the Parquet file cannot be read: " + message, path, "download or write the file again"});
}

void check(const arrow::Status& status, const std::string& path) {
  if (!status.ok()) throw damaged(status.message(), path);
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

// Row by row. Names the row when one is null, and the type when it is not a string.
std::vector<std::string> texts_of(const arrow::ChunkedArray& column, const std::string& name, const std::string& path) {
  const arrow::DataType& type = *column.type();
  std::vector<std::string> texts;
  texts.reserve(static_cast<size_t>(column.length()));
  for (const auto& chunk : column.chunks()) {
    if (chunk->null_count() > 0) {
      int64_t i = 0;
      while (chunk->IsValid(i)) ++i;
      throw Error(ErrorKind::kData,
                  {fmt::format("'{}' is null in row {}", name, texts.size() + static_cast<size_t>(i) + 1), path,
                   "remove the row or give it a text"});
    }
    if (type.id() == arrow::Type::STRING) {
      append_texts<arrow::StringArray>(*chunk, texts);
    } else if (type.id() == arrow::Type::LARGE_STRING) {
      append_texts<arrow::LargeStringArray>(*chunk, texts);
    } else if (is_string_dictionary(type)) {
      append_dictionary(static_cast<const arrow::DictionaryArray&>(*chunk), texts);
    } else {
      throw Error(ErrorKind::kData,
                  {fmt::format("the column '{}' holds {}, not strings", name, type.ToString()), path, ""});
    }
  }
  return texts;
}

std::vector<std::string> read_column(const std::string& path, const std::string& text_column) {
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
  std::unique_ptr<parquet::arrow::FileReader> opened;
  check(builder.memory_pool(pool)->Build(&opened), path);
  parquet::arrow::FileReader& reader = *opened;
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
