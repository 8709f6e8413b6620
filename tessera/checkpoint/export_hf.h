// From a checkpoint to a folder that transformers loads: config.json, weights, tokenizer files; or to the weights
// alone.
#pragma once

#include <c10/core/ScalarType.h>

#include <filesystem>

#include "tessera/checkpoint/weight_files.h"

namespace tessera::checkpoint {

struct ExportInput {
  std::filesystem::path checkpoint;  // <folder>/<tag>, or <folder>: what its `latest` names
  std::filesystem::path model;   // where config.json and the tokenizer files come from; empty: as the checkpoint says
  std::filesystem::path output;  // appears whole or not at all; an earlier export there is replaced
  at::ScalarType dtype = at::kFloat;
  WeightFiles files = {};     // its aliases are the checkpoint's
  bool weights_only = false;  // neither config.json nor tokenizer; `model` is not looked at
};

// One tensor is in memory at a time. Shared parameters are written once, under their first name, as transformers does.
// ErrorKind::kUsage when the output holds anything but an earlier export, kData for a damaged checkpoint, kMachine when
// the output cannot be written.
void export_hf(const ExportInput& input);

}  // namespace tessera::checkpoint
