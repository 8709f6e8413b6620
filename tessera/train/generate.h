// What `tessera generate` does: a model of a Hugging Face folder goes on from prompts, to standard output as it comes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/train/text_model_options.h"

namespace tessera::train {

inline constexpr int kGeneratedTokens = 128;  // where max_new_tokens does not say

struct GenerateOptions : TextModelOptions {
  std::vector<std::string> prompts;
  int64_t beams = 1;
};

// Prints each prompt and what follows; of an encoder-decoder, which reads the prompt, what it writes. ErrorKind::kData,
// kUsage: text_model.h, models/generation.h.
void generate_text(const GenerateOptions& options);

}  // namespace tessera::train
