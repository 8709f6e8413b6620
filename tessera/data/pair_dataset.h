// Pairs of texts as token ids: one that is read, and one that is to be written, of each row of some files.
//
// A source longer than max_source or a target longer than max_target tokens is cut before what its frame ends with. A
// row of which either text has no token is left out.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/data/dataset.h"
#include "tessera/data/tokenizer.h"

namespace tessera::data {

struct PairOptions {
  std::vector<std::string> files;
  std::string source_column, target_column;    // "translation.en": of an object in a row
  std::string source_prefix;                   // before each source: "translate English to Romanian: "
  int64_t max_source = 512, max_target = 128;  // tokens, frames included
  bool keeps_target_texts = false;             // beside their tokens
};

struct PairCounts {
  int64_t rows = 0;
  int64_t empty_rows = 0;
  int64_t cut_sources = 0, cut_targets = 0;
};

class PairDataset {
 public:
  // Reads and tokenises. The tokenizer is used only during the call. Throws what read_texts throws; ErrorKind::kData
  // where no row is left, kConfig where a length leaves no room for text.
  PairDataset(const Tokenizer& tokenizer, const PairOptions& options);

  size_t size() const { return sources_.size(); }
  const TokenSamples& sources() const { return sources_; }
  const TokenSamples& targets() const { return targets_; }
  const std::string& target_text(size_t i) const { return target_texts_.at(i); }  // as the row has it, where kept
  const PairCounts& counts() const { return counts_; }

  // How many samples there are up to the end of each file.
  const std::vector<uint64_t>& file_ends() const { return file_ends_; }

 private:
  TokenSamples sources_, targets_;
  std::vector<std::string> target_texts_;
  PairCounts counts_;
  std::vector<uint64_t> file_ends_;
};

}  // namespace tessera::data
