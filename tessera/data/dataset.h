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
#include <span>
#include <string>
#include <vector>

#include "tessera/data/tokenizer.h"

namespace tessera::data {

// Token ids of numbered samples in one flat array, and which of them a loss counts. Spans live as long as this, until
// the next add(). Safe to read from any thread.
class TokenSamples {
 public:
  size_t size() const { return offsets_.size() - 1; }
  std::span<const int32_t> sample(size_t i) const {
    return std::span(tokens_).subspan(offsets_[i], offsets_[i + 1] - offsets_[i]);
  }
  int64_t total_tokens() const { return static_cast<int64_t>(tokens_.size()); }

  // Whether the sample's token at this place is one to be predicted. All are, where nobody said otherwise.
  bool is_target(size_t i, int64_t place) const {
    return is_target_.empty() || is_target_[offsets_[i] + static_cast<size_t>(place)];
  }

  // Either all samples are added with targets, as many as tokens, or none.
  void add(std::span<const int32_t> tokens, std::span<const uint8_t> targets = {}) {
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    is_target_.insert(is_target_.end(), targets.begin(), targets.end());
    offsets_.push_back(tokens_.size());
  }

 private:
  std::vector<int32_t> tokens_;
  std::vector<bool> is_target_;     // as many as tokens, or none
  std::vector<size_t> offsets_{0};  // size() + 1 of them
};

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
