// The token ids of all samples of some files: in memory, or in a folder where they are kept (token_cache.h), for files
// that are larger than memory. Files are read and tokenised piece by piece.
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
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tessera/data/tokenizer.h"

namespace tessera::data {

// Whatever takes samples one after the other.
class TokenSink {
 public:
  virtual ~TokenSink() = default;

  // Either all samples are added with targets, as many as tokens, or none.
  virtual void add(std::span<const int32_t> tokens, std::span<const uint8_t> targets = {}) = 0;
};

// Arrays that somebody else holds.
struct TokenArrays {
  std::span<const int32_t> tokens;
  std::span<const uint8_t> is_target;  // as many as tokens, or none
  std::span<const uint64_t> offsets;   // one more than samples; the first is 0, the last the number of tokens
};

// Token ids of numbered samples in one flat array, and which of them a loss counts: in memory, or in a file that is
// mapped (token_cache.h), of which the system keeps as much in memory as there is room for. Spans live as long as this,
// until the next add(). Safe to read from any thread.
class TokenSamples : public TokenSink {
 public:
  TokenSamples() = default;
  TokenSamples(const TokenArrays& arrays, std::shared_ptr<const void> holder)
      : mapped_(arrays), holder_(std::move(holder)) {}
  TokenSamples(TokenSamples&&) = default;
  TokenSamples& operator=(TokenSamples&&) = default;

  size_t size() const { return offsets().size() - 1; }
  std::span<const int32_t> sample(size_t i) const {
    return tokens().subspan(offsets()[i], offsets()[i + 1] - offsets()[i]);
  }
  int64_t total_tokens() const { return static_cast<int64_t>(tokens().size()); }

  // Where each sample begins among all tokens; then where the last ends.
  std::span<const uint64_t> offsets() const { return holder_ ? mapped_.offsets : std::span<const uint64_t>(offsets_); }

  // Whether the sample's token at this place is one to be predicted. All are, where nobody said otherwise.
  bool is_target(size_t i, int64_t place) const {
    const std::span<const uint8_t> targets = holder_ ? mapped_.is_target : std::span<const uint8_t>(is_target_);
    return targets.empty() || targets[offsets()[i] + static_cast<size_t>(place)] != 0;
  }

  // Not to samples that are mapped.
  void add(std::span<const int32_t> tokens, std::span<const uint8_t> targets = {}) override {
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    is_target_.insert(is_target_.end(), targets.begin(), targets.end());
    offsets_.push_back(tokens_.size());
  }

 private:
  std::span<const int32_t> tokens() const { return holder_ ? mapped_.tokens : std::span<const int32_t>(tokens_); }

  std::vector<int32_t> tokens_;
  std::vector<uint8_t> is_target_;
  std::vector<uint64_t> offsets_{0};
  TokenArrays mapped_;
  std::shared_ptr<const void> holder_;  // null: the samples are in memory
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

  std::string cache;               // the folder where samples are kept and found; empty: in memory
  std::string name = "the texts";  // for messages: "data.train"
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

// ErrorKind::kConfig where samples of max_length tokens have no room for one of text beside a frame of so many.
void require_room_for_text(int64_t max_length, size_t frame);

class TokenizedDataset : public TokenSamples {
 public:
  // Reads and tokenises. The tokenizer is used only during the call. Throws what read_texts throws; ErrorKind::kData
  // when all rows together hold not one ordinary token; ErrorKind::kConfig when max_length leaves no room for text;
  // with a cache, what cached_tokens throws.
  TokenizedDataset(const Tokenizer& tokenizer, const DatasetOptions& options);

  const TextCounts& counts() const { return counts_; }

  // How many samples there are up to the end of each file.
  const std::vector<uint64_t>& file_ends() const { return file_ends_; }

 private:
  TextCounts counts_;
  std::vector<uint64_t> file_ends_;
};

}  // namespace tessera::data
