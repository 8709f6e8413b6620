// tessera generate: text from a model.
#include "tessera/train/generate.h"

#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "tessera/cli/commands.h"
#include "tessera/cli/rank_command.h"
#include "tessera/cli/text_model_flags.h"
#include "tessera/comm/rendezvous.h"

namespace tessera::cli {
namespace {

constexpr const char* kStandardInput = "-";

}  // namespace

void add_generate_command(CLI::App& app, const std::string& program, int& exit_code) {
  auto* const command =
      app.add_subcommand("generate", "Continue a prompt with a causal language model, or answer it with T5");
  const auto options = std::make_shared<train::GenerateOptions>();
  const auto flags = std::make_shared<LaunchFlags>();
  add_text_model_flags(*command, *options, *flags, train::kGeneratedTokens);
  command
      ->add_option("--prompt", options->prompts,
                   "The text to continue, or to read; may be given several times; - reads standard input")
      ->allow_extra_args(false)  // CLI11 would take "[INST] … [/INST]" for a list
      ->required();
  command->add_option("--beams", options->beams, "Beam search with this many beams")->capture_default_str();
  command->callback([command, options, flags, program, &exit_code] {
    if (!flags->runs_here(*command)) {
      std::erase(options->prompts, kStandardInput);
      train::check_generate(*options);
      exit_code = start_as_ranks(*command, program, *flags);
      return;
    }
    const bool reads = comm::world_from_environment().rank == 0;  // it tells the others
    for (std::string& prompt : options->prompts) {
      if (prompt == kStandardInput && reads) prompt.assign(std::istreambuf_iterator<char>(std::cin), {});
    }
    exit_code = train::generate_text(*options);
  });
}

}  // namespace tessera::cli
