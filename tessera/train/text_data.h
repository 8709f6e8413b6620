// The text of a run file as samples, and what the user is told of it at the start.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tessera/train/task.h"

namespace tessera::train {

// A TextData whose batches the collator of that name makes (data/collators.h).
std::unique_ptr<TaskData> read_collated_text(const DataSource& source, const std::string& collator,
                                             const TextShape& shape = {});

// ErrorKind::kConfig where the run asks for rows of several samples, of a task that knows none.
void refuse_packing(const config::RunFile& run);

// One line of what was read: "data.train: 4,358 rows, 1,467 of them empty and left out; 2,891 samples, …".
std::string describe_dataset(const std::string& key, const data::TokenizedDataset& dataset,
                             const data::DatasetOptions& options);

// What is probably not meant of texts that were cut after max_length tokens: much was, `remedy` (may be empty) says
// what to do, or many tokens are unknown. One line each.
std::vector<std::string> doubts_of_counts(const std::string& key, const data::TextCounts& counts, int64_t max_length,
                                          const std::string& remedy);

// What is probably not meant: much text cut off, many unknown tokens. One line each.
std::vector<std::string> doubts_of_dataset(const std::string& key, const data::TokenizedDataset& dataset,
                                           const data::DatasetOptions& options);

}  // namespace tessera::train
