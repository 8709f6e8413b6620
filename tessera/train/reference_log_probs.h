// What the model gives the answers of preferences before it is trained: the reference of their loss
// (preference_loss.h), computed in one pass over the data, so that no second model is held.
//
// The numbers lie in <output>/reference.json, so that a run that resumes has them: with hashes of the files of the
// model and of the data's tokens, by which they are told from those of another run, and a checksum of its own.
//
//   {"format": "tessera-reference", "version": 1, "xxh3": "…", "model": "…", "data": "…", "log_probs": [w, l, w, l, …]}
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "tessera/train/task.h"

namespace tessera::train {

// Of a batch of pairs (data/preference_collator.h): (2 · pairs) in fp32, the chosen answers first.
at::Tensor answer_log_probs(NetworkEngine& engine, const models::NamedTensors& batch);

struct ReferenceInput {
  NetworkEngine& engine;
  std::vector<data::Samples<data::Batch>> data;  // pairs, numbered one after the other
  std::filesystem::path output;                  // the run's
  std::string model, data_hash;                  // what the numbers are of
  bool resumes = false;                          // the file is read, where it is there
};

// (pairs, 2) in fp32, on the engine's device; chosen first. Collective; rank 0 alone reads and writes the file. Errors:
// ErrorKind::kData where the file is damaged or of another model or other data, or a number is not finite; kUsage where
// a run that does not resume has checkpoints in the output; kMachine where the file cannot be written.
at::Tensor reference_log_probs(const ReferenceInput& input);

}  // namespace tessera::train
