// The token ids of all samples of some files, in memory.
//
//   tokens   [CLS] a b c [SEP] | [CLS] d [SEP] | …      int32, one flat array
//   sample i is the span between two offsets
//
// A row of a file is a sample, so an empty row becomes [CLS] [SEP] unless drop_empty is set. Files are read in the
// order given. Tokenising uses two threads at most. Immutable after construction; spans live as long as the dataset;
// safe to read from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tessera/data/tokenizer.h"

namespace tessera::data {

struct DatasetOptions {
  std::vector<std::string> files;
  std::string text_column = "text";
  int64_t max_length = 512;  // tokens of a sample, [CLS] and [SEP] included; longer samples are cut
  bool drop_empty = false;   // leave out rows that hold no token
};

class TokenizedDataset {
 public:
  // Reads and tokenises. The tokenizer is used only during the call. Throws what read_texts throws; ErrorKind::kData
  // when all rows together hold not one ordinary token; ErrorKind::kConfig when max_length leaves no room for text.
  TokenizedDataset(const Tokenizer& tokenizer, const DatasetOptions& options);

  size_t size() const { return offsets_.size() - 1; }
  std::span<const int32_t> sample(size_t i) const {
    return std::span(tokens_).subspan(offsets_[i], offsets_[i + 1] - offsets_[i]);
  }
  int64_t total_tokens() const { return static_cast<int64_t>(tokens_.size()); }  // [CLS] and [SEP] included

 private:
  std::vector<int32_t> tokens_;
  std::vector<size_t> offsets_{0};  // size() + 1 of them
};

}  // namespace tessera::data
