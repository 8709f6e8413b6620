// What `tessera generate` does: a model of a Hugging Face folder goes on from prompts, to standard output as it comes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::train {

struct GenerateOptions {
  std::string model;      // a folder: config.json, weights; or one with an adapter, which says where its model lies
  std::string adapter;    // a folder with an adapter to the model, in PEFT's format; empty: none
  std::string tokenizer;  // a folder; empty: the model's
  std::vector<std::string> prompts;
  int64_t max_new_tokens = 0;  // 0: 128, or as many as the model has room for
  double temperature = 0;      // models/generation.h
  int64_t top_k = 0;
  double top_p = 1;
  int64_t beams = 1;
  uint64_t seed = 42;
  std::string dtype = "fp32";  // of the weights: fp32 or bf16
};

// Prints each prompt and what follows. ErrorKind::kData, kUsage: models/generation.h, models/model.h.
void generate_text(const GenerateOptions& options);

}  // namespace tessera::train
