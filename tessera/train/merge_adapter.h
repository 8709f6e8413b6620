// What `tessera checkpoint merge` does: a model and an adapter to it become one model.
#pragma once

#include <c10/core/ScalarType.h>

#include <string>

namespace tessera::train {

struct MergeInput {
  std::string adapter;  // a folder in PEFT's format
  std::string model;    // the folder of its model; empty: as the adapter says
  std::string output;   // a Hugging Face folder, which appears whole or not at all
  c10::ScalarType dtype = c10::ScalarType::Float;
};

// W + s B A, or with DoRA m (W + s B A) / ||W + s B A||, in fp32 for each adapted matrix, rounded once. One tensor is
// in memory at a time. ErrorKind::kData where the adapter does not fit the model; kUsage, kMachine:
// checkpoint::export_weights.
void merge_adapter(const MergeInput& input);

}  // namespace tessera::train
