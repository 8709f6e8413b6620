// Conversations as token ids, of which the answers are targets: what a model is tuned on to follow instructions.
//
//   <s>[INST] What is 2 + 2? [/INST] 4 </s>
//   - - -    -    -   -   -  -       t t        t: a target
//
// A conversation is one sample, as its template writes it. Targets are the tokens of what the template marks as
// generated
// ({% generation %}); where it marks nothing, those from where the prompt of an answer ends to where the answer does. A
// template that writes earlier turns in another way once later ones follow (Qwen 3 leaves their thoughts out) cannot be
// asked where they end: such a conversation becomes a sample for each answer, with what the model sees before it. Of a
// row with two texts, the completion is the target, then the token of the text's end.
//
// A token that is part of both a prompt and an answer is a target, as in transformers and TRL.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/data/chat_template.h"
#include "tessera/data/dataset.h"
#include "tessera/data/tokenizer.h"

namespace tessera::data {

struct ChatOptions {
  std::vector<std::string> files;  // read_conversations
  std::string tokenizer_folder;
  std::string chat_template;  // as ChatTemplate's choice
  int64_t max_length = 512;   // tokens of a sample; what is beyond is cut

  std::string cache;               // the folder where samples are kept and found (token_cache.h); empty: in memory
  std::string name = "the texts";  // for messages: "data.train"
};

struct ChatCounts {
  int64_t conversations = 0;
  int64_t split = 0;           // into a sample for each answer
  int64_t long_samples = 0;    // longer than max_length, and cut
  int64_t without_answer = 0;  // samples of which nothing is a target (what is cut included), and left out
  int64_t targets = 0;
};

class ChatDataset : public TokenSamples {
 public:
  // Reads and tokenises on two threads at most. The tokenizer is used only during the call. ErrorKind::kData where a
  // file or a row is damaged, the template refuses a row (which is named), or no sample has a target.
  ChatDataset(const Tokenizer& tokenizer, const ChatOptions& options);

  const ChatCounts& counts() const { return counts_; }
  const std::string& template_name() const { return template_name_; }  // empty: no row needed one

  // How many samples there are up to the end of each file.
  const std::vector<uint64_t>& file_ends() const { return file_ends_; }

 private:
  ChatCounts counts_;
  std::string template_name_;
  std::vector<uint64_t> file_ends_;
};

}  // namespace tessera::data
