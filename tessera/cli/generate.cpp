// tessera generate: text from a model.
#include "tessera/train/generate.h"

#include <iostream>
#include <iterator>
#include <memory>

#include "tessera/cli/commands.h"

namespace tessera::cli {

void add_generate_command(CLI::App& app) {
  auto* const command = app.add_subcommand("generate", "Continue a prompt with a causal language model");
  const auto options = std::make_shared<train::GenerateOptions>();
  command
      ->add_option("--model", options->model,
                   "A Hugging Face folder: config.json, weights, tokenizer; or a folder with an adapter")
      ->required();
  command->add_option("--adapter", options->adapter, "A folder with an adapter to the model, in PEFT's format");
  command
      ->add_option("--prompt", options->prompts,
                   "The text to continue; may be given several times; - reads standard input")
      ->required();
  command->add_option("--tokenizer", options->tokenizer, "A folder with a tokenizer, if not the model's");
  command
      ->add_option("--max-new-tokens", options->max_new_tokens,
                   "Tokens to generate at most; 0: 128, or as many as the model has room for")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command
      ->add_option("--temperature", options->temperature, "Draw tokens at this temperature; 0: always the most likely")
      ->capture_default_str();
  command->add_option("--top-k", options->top_k, "Draw from this many most likely tokens; 0: from all")
      ->capture_default_str();
  command->add_option("--top-p", options->top_p, "Draw from the fewest tokens that together have this probability")
      ->capture_default_str();
  command->add_option("--beams", options->beams, "Beam search with this many beams")->capture_default_str();
  command->add_option("--seed", options->seed, "Seed of what is drawn")->capture_default_str();
  command->add_option("--dtype", options->dtype, "Of the weights in memory: fp32 or bf16")->capture_default_str();
  command->callback([options] {
    for (std::string& prompt : options->prompts) {
      if (prompt == "-") prompt.assign(std::istreambuf_iterator<char>(std::cin), {});
    }
    train::generate_text(*options);
  });
}

}  // namespace tessera::cli
