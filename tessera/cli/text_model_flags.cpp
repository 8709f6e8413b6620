#include "tessera/cli/text_model_flags.h"

#include <string>

namespace tessera::cli {

void add_text_model_flags(CLI::App& command, train::TextModelOptions& options, LaunchFlags& flags, int usual_tokens) {
  command
      .add_option("--model", options.model,
                  "A Hugging Face folder: config.json, weights, tokenizer; or a folder with an adapter")
      ->required();
  command.add_option("--adapter", options.adapter, "A folder with an adapter to the model, in PEFT's format");
  command.add_option("--tokenizer", options.tokenizer, "A folder with a tokenizer, if not the model's");
  command
      .add_option(
          "--max-new-tokens", options.max_new_tokens,
          "Tokens to write at most; 0: " + std::to_string(usual_tokens) + ", or as many as the model has room for")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command
      .add_option("--temperature", options.temperature, "Draw tokens at this temperature; 0: always the most likely")
      ->capture_default_str();
  command.add_option("--top-k", options.top_k, "Draw from this many most likely tokens; 0: from all")
      ->capture_default_str();
  command.add_option("--top-p", options.top_p, "Draw from the fewest tokens that together have this probability")
      ->capture_default_str();
  command.add_option("--seed", options.seed, "Seed of what is drawn")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command.add_option("--dtype", options.dtype, "Of the weights in memory: fp32 or bf16")->capture_default_str();
  command.add_option("--nproc", flags.nproc, "Number of ranks of this host, which share the weights among them")
      ->capture_default_str();
}

}  // namespace tessera::cli
