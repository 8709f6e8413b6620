// What a Hugging Face folder says of how its model writes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/data/tokenizer.h"

namespace tessera::train {

struct GenerationConfig {
  std::vector<int32_t> stop_tokens;  // of generation_config.json, else config.json, else the tokenizer's end of text
  std::optional<int64_t> decoder_start;  // of generation_config.json; nothing: the model's own

  // What changes transformers' tokens and is not honoured here: penalties, forced and suppressed tokens.
  std::vector<std::string> doubts = {};
};

// Warns of the doubts, on rank 0 alone.
void report_doubts(const GenerationConfig& config, int rank);

// ErrorKind::kData for a file that is damaged.
GenerationConfig read_generation_config(const std::string& folder, const data::Tokenizer& tokenizer);

}  // namespace tessera::train
