// What `tessera init-model` does: a Hugging Face folder with a model of given sizes and random weights, to try a run
// with, or to train from scratch.
#pragma once

#include <cstdint>
#include <string>

namespace tessera::train {

// 0: as the others suggest, or the type's own.
struct InitModel {
  std::string type;       // config.json's model_type: one of the models' table
  std::string output;     // a folder that does not exist yet
  std::string tokenizer;  // a folder, whose files are copied and whose vocabulary the model gets; empty: none
  int64_t hidden = 256;
  int64_t layers = 4;
  int64_t heads = 0;     // one for each 64 of hidden
  int64_t kv_heads = 0;  // as many as heads
  int64_t ffn = 0;       // 4 times hidden; where it is gated 8/3 times, a multiple of 64
  int64_t vocab = 0;     // the tokenizer's, else the type's own
  int64_t positions = 0;
  uint64_t seed = 42;
};

// Writes config.json, model.safetensors and the tokenizer, and returns one line that says what. The values are those
// with which `model.init: random` begins. ErrorKind::kUsage for an unknown type, sizes that do not go together, or a
// folder that is there already.
std::string init_model(const InitModel& asked);

}  // namespace tessera::train
