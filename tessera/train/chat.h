// What `tessera chat` does: a conversation with a model of a Hugging Face folder, as its chat template writes it.
#pragma once

#include <string>

#include "tessera/base/input_lines.h"
#include "tessera/train/text_model_options.h"

namespace tessera::train {

inline constexpr int kAnswerTokens = 512;  // where max_new_tokens does not say

struct ChatOptions : TextModelOptions {
  std::string chat_template;  // data::ChatTemplate's choice; empty: the folder's own
  std::string system;         // said before the first question; empty: nothing

  // Somebody types: a mark asks for the next line, and what is too long is told, not an error.
  bool at_terminal = false;
};

// Each line of the input is a question, whose answer goes to standard output as it comes; "/reset" begins anew, "/exit"
// or the input's end is the end. The ranks of the environment's run share the weights (text_model.h); rank 0 reads and
// answers. Returns the exit code: train/rank_run.h. ErrorKind::kData, kUsage: text_model.h, data/chat_template.h; for a
// conversation for which the model has no room.
int chat(const ChatOptions& options, InputLines& input);

// The same errors, but for what a conversation meets, before ranks are started.
void check_chat(const ChatOptions& options);

}  // namespace tessera::train
