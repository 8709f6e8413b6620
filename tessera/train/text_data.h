// The text of a run file as samples, and what the user is told of it at the start.
#pragma once

#include <string>
#include <vector>

#include "tessera/config/run_file.h"
#include "tessera/data/dataset.h"
#include "tessera/data/tokenizer.h"

namespace tessera::train {

// `key`: "data.train" or "data.eval", for messages; `paths`: what it names. ErrorKind::kData where there are fewer
// samples than ranks.
data::TokenizedDataset read_dataset(const config::RunFile& run, const std::string& key,
                                    const std::vector<std::string>& paths, const data::Tokenizer& tokenizer,
                                    int world_size);

// One line of what was read: "data.train: 4,358 rows, 1,467 of them empty and left out; 2,891 samples, …".
std::string describe_dataset(const std::string& key, const data::TokenizedDataset& dataset,
                             const data::DatasetOptions& options);

// What is probably not meant: much text cut off, many unknown tokens. One line each.
std::vector<std::string> doubts_of_dataset(const std::string& key, const data::TokenizedDataset& dataset,
                                           const data::DatasetOptions& options);

data::DatasetOptions dataset_options(const config::RunFile& run, const std::vector<std::string>& paths);

}  // namespace tessera::train
