// The collators, by name; a task names the one that it takes (train/tasks.h). To add one: a class in a file of its own,
// a declaration here and a line in collators.cpp. A task of one's own may have one that is not in the table.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tessera/base/registry.h"
#include "tessera/config/run_file.h"
#include "tessera/data/collator.h"
#include "tessera/data/dataset.h"
#include "tessera/data/packing.h"
#include "tessera/data/padded_collator.h"
#include "tessera/data/tokenizer.h"

namespace tessera::data {

struct CollatorInput {
  const TokenizedDataset& dataset;  // which outlives the collator
  const Tokenizer& tokenizer;       // used only while the collator is made
  const config::RunFile::Data& options;
  uint64_t seed = 42;
  std::vector<uint64_t> part_ends = {};  // samples of the dataset up to the end of each part; empty: one
};

// What the run asks for; `automatic` where it leaves that to the task.
Packing packing_of(const config::RunFile::Data& options, Packing automatic);

// To data.max_length where the run asks for that.
Padding padding_of(const config::RunFile::Data& options, const Tokenizer& tokenizer);

using MakeCollator = std::unique_ptr<Collator> (*)(const CollatorInput& input);
Registry<MakeCollator> collators();

std::unique_ptr<Collator> make_clm_collator(const CollatorInput& input);  // clm_collator.cpp
std::unique_ptr<Collator> make_mlm_collator(const CollatorInput& input);  // mlm_collator.cpp

}  // namespace tessera::data
