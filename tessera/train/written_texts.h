// What the model that is being trained writes, by all ranks together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tessera/models/generation.h"
#include "tessera/train/generation_config.h"
#include "tessera/train/task.h"

namespace tessera::train {

struct WrittenTextsOptions {
  int64_t at_once = 1;         // rows of a forward pass
  int64_t max_new_tokens = 1;  // of a text, its end included
  GenerationConfig config;
};

// models::generate_rows by all ranks together, each of prompts and options of its own; without prompts, it idles until
// the others have written theirs. Every forward pass gathers parameters at stage 3, so all ranks run as many.
// Collective, over Engine::data_group. The engine is in evaluation.
std::vector<std::vector<int32_t>> write_rows(NetworkEngine& engine, const std::vector<std::vector<int32_t>>& prompts,
                                             models::GenerationOptions options);

// The tokens that the most likely text of each prompt has. Each rank gives prompts of its own, of which there may be
// none; `most` is how many the rank with the most has. Collective: write_rows.
std::vector<std::vector<int32_t>> write_texts(NetworkEngine& engine, const std::vector<std::vector<int32_t>>& prompts,
                                              size_t most, const WrittenTextsOptions& options);

}  // namespace tessera::train
