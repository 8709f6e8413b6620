// A Hugging Face folder's model in memory, to write texts with: what `tessera generate` and `tessera chat` begin with.
// Over several ranks its weights are sharded as at ZeRO's stage 3: each rank keeps a part of each unit, and gathers the
// others' for as long as the unit computes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tessera/comm/group.h"
#include "tessera/data/tokenizer.h"
#include "tessera/models/generation.h"
#include "tessera/models/model.h"
#include "tessera/train/generation_config.h"
#include "tessera/train/task.h"
#include "tessera/train/text_model_options.h"

namespace tessera::train {

struct TextModel {
  TextModelOptions options;  // an adapter's folder and its model's apart
  bool encodes = false;      // an encoder-decoder: what it writes is another text than the one that it reads
  std::unique_ptr<models::Model> model;
  std::shared_ptr<models::Network> network;
  models::GenerativeNetwork* writer = nullptr;  // the network
  std::unique_ptr<NetworkEngine> engine;        // over several ranks; null: the network's weights are whole
  std::unique_ptr<data::Tokenizer> tokenizer;
  GenerationConfig config;
};

// An encoder-decoder only where `may_encode`. `user`: who does what with it, for messages, as of models::read_model.
// ErrorKind::kData, kUsage: models/model.h, data/tokenizer.h; for options that make no sense. Without the weights: for
// what can be checked before ranks are started.
TextModel read_text_model(TextModelOptions options, bool may_encode, const std::string& user);

// With them. Collective over `world`.
void load_weights(TextModel& model, const std::shared_ptr<comm::Group>& world);

// What follows the prompt, by options of generation_options. Over ranks collective: each gives a prompt and options of
// its own, or only takes part in what the others write.
std::vector<int32_t> write_text(TextModel& model, const std::vector<int32_t>& prompt,
                                const models::GenerationOptions& options);
void take_part(TextModel& model);

// How it goes on from a prompt of so many tokens. `usual`: new tokens where the options do not say. ErrorKind::kUsage
// where the model has no room for them; `user`, the command, for the message.
models::GenerationOptions generation_options(const TextModel& model, size_t prompt, int64_t usual,
                                             const std::string& user);

// To standard output, at once.
void print_now(const std::string& text);

}  // namespace tessera::train
