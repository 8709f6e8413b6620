// tessera generate: text from a model.
#include "tessera/train/generate.h"

#include <iostream>
#include <iterator>
#include <memory>

#include "tessera/cli/commands.h"
#include "tessera/cli/text_model_flags.h"

namespace tessera::cli {

void add_generate_command(CLI::App& app) {
  auto* const command =
      app.add_subcommand("generate", "Continue a prompt with a causal language model, or answer it with T5");
  const auto options = std::make_shared<train::GenerateOptions>();
  add_text_model_flags(*command, *options, train::kGeneratedTokens);
  command
      ->add_option("--prompt", options->prompts,
                   "The text to continue, or to read; may be given several times; - reads standard input")
      ->required();
  command->add_option("--beams", options->beams, "Beam search with this many beams")->capture_default_str();
  command->callback([options] {
    for (std::string& prompt : options->prompts) {
      if (prompt == "-") prompt.assign(std::istreambuf_iterator<char>(std::cin), {});
    }
    train::generate_text(*options);
  });
}

}  // namespace tessera::cli
