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

// Prints each prompt and what follows; of an encoder-decoder, which reads the prompt, what it writes. The ranks of the
// environment's run share the weights (text_model.h) and the prompts, which are those of rank 0, and rank 0 prints all
// of them in their order. Returns the exit code: train/rank_run.h. ErrorKind::kData, kUsage: text_model.h,
// models/generation.h.
int generate_text(const GenerateOptions& options);

// The same errors, before ranks are started. There may be no prompt yet.
void check_generate(const GenerateOptions& options);

}  // namespace tessera::train
