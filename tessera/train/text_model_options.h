// Which model writes texts, and how: the options of `tessera generate` and `tessera chat`. Nothing of LibTorch.
#pragma once

#include <cstdint>
#include <string>

namespace tessera::train {

struct TextModelOptions {
  std::string model;      // a folder: config.json, weights; or one with an adapter, which says where its model lies
  std::string adapter;    // a folder with an adapter to the model, in PEFT's format; empty: none
  std::string tokenizer;  // a folder; empty: the model's
  int64_t max_new_tokens = 0;  // 0: the command's usual number, or as many as the model has room for
  double temperature = 0;      // models/generation.h
  int64_t top_k = 0;
  double top_p = 1;
  uint64_t seed = 42;
  std::string dtype = "fp32";  // of the weights: fp32 or bf16
};

}  // namespace tessera::train
