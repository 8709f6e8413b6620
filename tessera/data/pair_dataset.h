// Pairs of texts as token ids: one that is read, and one that is to be written, of each row of some files; in memory,
// or in a folder where they are kept (token_cache.h).
//
// A source longer than max_source or a target longer than max_target tokens is cut before what its frame ends with. A
// row of which either text has no token is left out.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/data/dataset.h"
#include "tessera/data/token_column.h"
#include "tessera/data/tokenizer.h"

namespace tessera::data {

struct PairOptions {
  std::vector<std::string> files;
  std::string source_column, target_column;    // "translation.en": of an object in a row
  std::string source_prefix;                   // before each source: "translate English to Romanian: "
  int64_t max_source = 512, max_target = 128;  // tokens, frames included
  bool keeps_target_texts = false;             // beside their tokens

  std::string cache;               // the folder where pairs are kept and found; empty: in memory
  std::string name = "the texts";  // for messages: "data.train"
};

struct PairCounts {
  int64_t rows = 0;
  int64_t empty_rows = 0;
  int64_t cut_sources = 0, cut_targets = 0;
};

class PairDataset {
 public:
  // Reads and tokenises on two threads at most. The tokenizer is used only during the call. Throws what for_each_row
  // throws; ErrorKind::kData where no row is left, kConfig where a length leaves no room for text; with a cache, what
  // cached_tokens throws.
  PairDataset(const Tokenizer& tokenizer, const PairOptions& options);

  size_t size() const { return sources().size(); }
  TokenColumn sources() const { return {rows_, {.of = sequences_, .place = 0}}; }
  TokenColumn targets() const { return {rows_, {.of = sequences_, .place = 1}}; }
  std::string target_text(size_t i) const;  // as the row has it, where kept
  const PairCounts& counts() const { return counts_; }

  // How many pairs there are up to the end of each file.
  const std::vector<uint64_t>& file_ends() const { return file_ends_; }

 private:
  TokenSamples rows_;  // source, target and, where it is kept, the target's text as code points
  size_t sequences_;
  PairCounts counts_;
  std::vector<uint64_t> file_ends_;
};

}  // namespace tessera::data
