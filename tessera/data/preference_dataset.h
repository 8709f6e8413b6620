// Preferences as token ids: for each pair the prompt with the chosen answer, and the prompt with the rejected one; the
// answers are targets. Token for token those of TRL's DPOTrainer. In memory, or in a folder where they are kept
// (token_cache.h).
//
//   <s> The sky is blue . </s>      <s> The sky is a cat . </s>
//    -   -   -  - t  t   t           -   -   -  - t  t  t  t        t: a target
//
// Texts are tokenised as one, in the tokenizer's frame, and end with the token of a text's end, where there is one;
// messages are what the template makes of them. The answer begins where the tokens of the prompt alone (of messages
// with what the template puts before an answer) part from those of either whole. Of what is longer than max_length the
// end is cut off; a pair whose prompt alone is as long is left out. So is one with an answer of no tokens, and one
// whose answers are the same (after they were cut), from which nothing can be learned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/data/dataset.h"
#include "tessera/data/token_column.h"
#include "tessera/data/tokenizer.h"

namespace tessera::data {

struct PreferenceOptions {
  std::vector<std::string> files;  // read_preferences
  std::string tokenizer_folder;
  std::string chat_template;  // as ChatTemplate's choice
  int64_t max_length = 512;   // tokens of prompt and answer

  std::string cache;               // the folder where pairs are kept and found; empty: in memory
  std::string name = "the texts";  // for messages: "data.train"
};

struct PreferenceCounts {
  int64_t rows = 0;
  int64_t cut = 0;            // pairs of which an answer was longer than max_length, and cut
  int64_t without_room = 0;   // left out: the prompt fills max_length
  int64_t empty_answers = 0;  // left out
  int64_t same_answers = 0;   // left out
  int64_t merged = 0;         // pairs whose answer begins before the prompt's last token: they share a token
  int64_t targets = 0;        // tokens of the answers
};

class PreferenceDataset {
 public:
  // Reads and tokenises on two threads at most. The tokenizer is used only during the call. ErrorKind::kData where a
  // file or a row is damaged, the template refuses a row (which is named), or no pair is left; with a cache, what
  // cached_tokens throws.
  PreferenceDataset(const Tokenizer& tokenizer, const PreferenceOptions& options);

  size_t size() const { return chosen().size(); }
  TokenColumn chosen() const { return {pairs_, {.of = 2, .place = 0}}; }
  TokenColumn rejected() const { return {pairs_, {.of = 2, .place = 1}}; }
  const PreferenceCounts& counts() const { return counts_; }
  const std::string& template_name() const { return template_name_; }  // empty: no row needed one

  // How many pairs there are up to the end of each file.
  const std::vector<uint64_t>& file_ends() const { return file_ends_; }

 private:
  TokenSamples pairs_;  // chosen, rejected
  PreferenceCounts counts_;
  std::string template_name_;
  std::vector<uint64_t> file_ends_;
};

}  // namespace tessera::data
