// The token ids of all samples of some files, in memory.
//
//   tokens   [CLS] a b c [SEP] | [CLS] d [SEP] | …
//
// A row of a file is a sample, in the tokenizer's frame ([CLS] and [SEP] here). A row without a token is left out, or
// is a frame around nothing where drop_empty is off; one that is longer than max_length is cut, or becomes several
// samples. TextCounts says how many of which there were. Files are read in the order given. Tokenising uses two threads
// at most. Immutable after construction; spans live as long as the dataset; safe to read from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/data/token_samples.h"
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

class TokenizedDataset : public TokenSamples {
 public:
  // Reads and tokenises. The tokenizer is used only during the call. Throws what read_texts throws; ErrorKind::kData
  // when all rows together hold not one ordinary token; ErrorKind::kConfig when max_length leaves no room for text.
  TokenizedDataset(const Tokenizer& tokenizer, const DatasetOptions& options);

  const TextCounts& counts() const { return counts_; }

 private:
  TextCounts counts_;
};

}  // namespace tessera::data
