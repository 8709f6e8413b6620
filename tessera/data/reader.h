// Reads the texts of one file, one document a row, in the file's order. The format follows from the file's extension;
// readers.h has the table.
//
//   const std::vector<std::string> texts = read_texts("train.parquet", "text");
//
// Rows are valid UTF-8. Empty rows of parquet, jsonl and csv are kept (WikiText has them), so row i stays sample i; a
// txt file gives one row for each line that is not blank. `text_column` is not looked at for txt.
//
// Throws ErrorKind::kData when the file is missing, empty, damaged, has no such column (naming those there are), has a
// row without a text or is not UTF-8; ErrorKind::kUsage for an extension that no reader takes. Safe to call from any
// thread.
#pragma once

#include <string>
#include <vector>

namespace tessera::data {

std::vector<std::string> read_texts(const std::string& path, const std::string& text_column);

}  // namespace tessera::data
