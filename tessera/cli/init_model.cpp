// tessera init-model: a model with random weights, in a folder.
#include "tessera/train/init_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <limits>
#include <memory>

#include "tessera/cli/commands.h"
#include "tessera/models/models.h"

namespace tessera::cli {

void add_init_model_command(CLI::App& app) {
  auto* const command = app.add_subcommand("init-model", "Make a Hugging Face folder with a model of random weights");
  const auto asked = std::make_shared<train::InitModel>();
  command->add_option("OUTPUT", asked->output, "Folder to make")->required();
  command
      ->add_option("--type", asked->type,
                   fmt::format("Model type: {}", fmt::join(models::models().table().names(), ", ")))
      ->required();
  command->add_option("--tokenizer", asked->tokenizer,
                      "A folder with a tokenizer, to be copied; decides the vocabulary");
  const auto size = [&](const char* name, auto& value, const char* help, const CLI::Validator& range) {
    command->add_option(name, value, help)->check(range)->capture_default_str();
  };
  const CLI::Range above_zero(1, std::numeric_limits<int>::max());
  size("--hidden", asked->hidden, "Width of the hidden states", above_zero);
  size("--layers", asked->layers, "Number of layers", above_zero);
  size("--heads", asked->heads, "Attention heads; 0: one for each 64 of --hidden", CLI::NonNegativeNumber);
  size("--kv-heads", asked->kv_heads, "Heads of keys and values; 0: as many as heads", CLI::NonNegativeNumber);
  size("--ffn", asked->ffn, "Width of the feed-forward layers; 0: 4 times --hidden, 8/3 times where gated",
       CLI::NonNegativeNumber);
  size("--vocab", asked->vocab, "Tokens of the vocabulary; 0: the tokenizer's, else the type's own",
       CLI::NonNegativeNumber);
  size("--positions", asked->positions, "Tokens of a sample at most; 0: the type's own", CLI::NonNegativeNumber);
  size("--seed", asked->seed, "Seed of the weights", CLI::NonNegativeNumber);
  command->callback([asked] { std::puts(train::init_model(*asked).c_str()); });
}

}  // namespace tessera::cli
