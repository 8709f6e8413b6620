// The token ids of all samples of some files, in memory.
//
//   tokens   [CLS] a b c [SEP] | [CLS] d [SEP] | …      int32, one flat array
//   sample i is the span between two offsets
//
// A row of a file is a sample, in the tokenizer's frame ([CLS] and [SEP] here). A row without a token is left out, or
// is a frame around nothing where drop_empty is off; one that is longer than max_length is cut, or becomes several
// samples. TextCounts says how many of which there were. Files are read in the order given. Tokenising uses two threads
// at most. Immutable after construction; spans live as long as the dataset; safe to read from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tessera/data/tokenizer.h"

namespace tessera::data {

enum class LongText {
  kTruncate,  // its first max_length tokens are a sample, the rest is left out
  kChunk,     // consecutive pieces of it are samples, each in a frame of its own
};

struct DatasetOptions {
  std::vector<std::string> files;
  std::string text_column = "text";
  int64_t max_length = 512;  // tokens of a sample, its frame included
  bool drop_empty = true;
  LongText long_text = LongText::kTruncate;
  bool ends_with_eos = false;  // each sample, where the tokenizer has such a token and its frame does not say so
};

// What the files held and what became of it.
struct TextCounts {
  int64_t rows = 0;
  int64_t empty_rows = 0;      // without a token
  int64_t long_rows = 0;       // longer than max_length
  int64_t text_tokens = 0;     // of all rows, without frames, before anything is cut
  int64_t cut_tokens = 0;      // of those, left out because their row was too long
  int64_t unknown_tokens = 0;  // of those, not in the vocabulary
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
  int64_t total_tokens() const { return static_cast<int64_t>(tokens_.size()); }  // frames included
  const TextCounts& counts() const { return counts_; }

 private:
  std::vector<int32_t> tokens_;
  std::vector<size_t> offsets_{0};  // size() + 1 of them
  TextCounts counts_;
};

}  // namespace tessera::data
