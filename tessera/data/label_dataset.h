// Texts, or pairs of texts, as token ids, each with a label's number, of the rows of some files; in memory, or in a
// folder where they are kept (token_cache.h).
//
// A text that is too long is cut before what its frame ends with. Of a pair the longer text is cut first, as the
// `tokenizers` package does by "longest_first": see pair_lengths().
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tessera/data/dataset.h"
#include "tessera/data/token_column.h"
#include "tessera/data/tokenizer.h"

namespace tessera::data {

struct LabelOptions {
  std::vector<std::string> files;
  std::string text_column = "text";
  std::string pair_column;  // of the second text of a pair; empty: one text a row
  std::string label_column = "label";
  std::vector<std::string> labels;  // their names, in the order of their numbers
  int64_t max_length = 512;         // tokens of a sample, its frame included
  bool drop_empty = true;           // rows without a token

  std::string cache;               // the folder where samples are kept and found; empty: in memory
  std::string name = "the texts";  // for messages: "data.train"
};

struct LabelCounts : TextCounts {
  std::vector<int64_t> of_label;  // rows
};

class LabelDataset {
 public:
  // Reads and tokenises on two threads at most. The tokenizer is used only during the call. Throws what for_each_row
  // throws; ErrorKind::kData for a label that is none of the options', where no row is left, or for pairs where the
  // tokenizer does not say how they are framed; kConfig where max_length leaves no room for text; with a cache, what
  // cached_tokens throws.
  LabelDataset(const Tokenizer& tokenizer, const LabelOptions& options);

  size_t size() const { return texts().size(); }
  TokenColumn texts() const { return column(0); }  // of a pair both, in their frame
  int64_t label(size_t sample) const { return column(1).sample(sample).front(); }

  // Of the sample's tokens: which text of a pair each belongs to, as the tokenizer counts. Empty: all of type 0.
  std::span<const int32_t> token_types(size_t sample) const {
    return sequences_ < 3 ? std::span<const int32_t>() : column(2).sample(sample);
  }

  const LabelCounts& counts() const { return counts_; }

  // How many samples there are up to the end of each file.
  const std::vector<uint64_t>& file_ends() const { return file_ends_; }

 private:
  TokenColumn column(size_t place) const { return {rows_, {.of = sequences_, .place = place}}; }

  TokenSamples rows_;  // tokens, the label alone and, of pairs, the tokens' types
  size_t sequences_;
  LabelCounts counts_;
  std::vector<uint64_t> file_ends_;
};

// The names of the labels in these files: numbers by their value, anything else by its letters. ErrorKind::kData for
// one label alone, too many, or numbers that are not whole.
std::vector<std::string> labels_of_files(const std::vector<std::string>& files, const std::string& label_column);

// The number of what a row has as its label: the place of that name; else, of a whole number, itself, and of true and
// false, where there are two labels, 1 and 0. Negative where it is none of them.
int64_t number_of_label(const std::string& label, const std::vector<std::string>& labels);

// How many tokens of the two texts of a pair fit into `room`. The shorter text is kept whole where it has at most half
// of the room; else both get half, and of an odd number the longer one (the second of equals) one more.
std::pair<size_t, size_t> pair_lengths(size_t first, size_t second, size_t room);

}  // namespace tessera::data
