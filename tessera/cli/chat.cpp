// tessera chat: a conversation with a model.
#include "tessera/train/chat.h"

#include <unistd.h>

#include <iostream>
#include <memory>

#include "tessera/cli/commands.h"
#include "tessera/cli/text_model_flags.h"

namespace tessera::cli {

void add_chat_command(CLI::App& app) {
  auto* const command = app.add_subcommand(
      "chat", "Talk with a causal language model: a line is a question; /reset begins anew, /exit ends");
  const auto options = std::make_shared<train::ChatOptions>();
  add_text_model_flags(*command, *options, train::kAnswerTokens);
  command->add_option("--system", options->system, "What the model is told before the first question");
  command->add_option(
      "--template", options->chat_template,
      "How a conversation is written, if not as the tokenizer's folder says: alpaca, chatml, internlm2, "
      "llama2, llama3, qwen2, or a .jinja file");
  command->callback([options] {
    options->at_terminal = isatty(STDIN_FILENO) == 1;
    train::chat(*options, std::cin);
  });
}

}  // namespace tessera::cli
