// tessera chat: a conversation with a model.
#include "tessera/train/chat.h"

#include <unistd.h>

#include <memory>

#include "tessera/cli/commands.h"
#include "tessera/cli/rank_command.h"
#include "tessera/cli/text_model_flags.h"

namespace tessera::cli {

void add_chat_command(CLI::App& app, const std::string& program, int& exit_code) {
  auto* const command = app.add_subcommand(
      "chat", "Talk with a causal language model: a line is a question; /reset begins anew, /exit ends");
  const auto options = std::make_shared<train::ChatOptions>();
  const auto flags = std::make_shared<LaunchFlags>();
  add_text_model_flags(*command, *options, *flags, train::kAnswerTokens);
  command->add_option("--system", options->system, "What the model is told before the first question");
  command->add_option(
      "--template", options->chat_template,
      "How a conversation is written, if not as the tokenizer's folder says: alpaca, chatml, internlm2, "
      "llama2, llama3, qwen2, or a .jinja file");
  command->callback([command, options, flags, program, &exit_code] {
    if (!flags->runs_here(*command)) {
      train::check_chat(*options);
      exit_code = start_as_ranks(*command, program, *flags);
      return;
    }
    options->at_terminal = isatty(STDIN_FILENO) == 1;
    InputLines input(STDIN_FILENO);
    exit_code = train::chat(*options, input);
  });
}

}  // namespace tessera::cli
