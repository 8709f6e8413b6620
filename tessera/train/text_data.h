// The text of a run file as samples, and what the user is told of it at the start.
#pragma once

#include <string>
#include <vector>

#include "tessera/config/run_file.h"
#include "tessera/data/dataset.h"
#include "tessera/train/tasks.h"

namespace tessera::train {

// Tokens of texts as a task's data: who derives it says how they become batches.
class TextData : public TaskData {
 public:
  explicit TextData(const DataSource& source);

  std::string description() const override;
  std::vector<std::string> doubts() const override;

 protected:
  const data::TokenizedDataset& dataset() const { return dataset_; }

 private:
  std::string key_;
  data::DatasetOptions options_;
  data::TokenizedDataset dataset_;
};

// … by the collator of that name (data/collators.h).
std::unique_ptr<TaskData> read_collated_text(const DataSource& source, const std::string& collator);

// One line of what was read: "data.train: 4,358 rows, 1,467 of them empty and left out; 2,891 samples, …".
std::string describe_dataset(const std::string& key, const data::TokenizedDataset& dataset,
                             const data::DatasetOptions& options);

// What is probably not meant: much text cut off, many unknown tokens. One line each.
std::vector<std::string> doubts_of_dataset(const std::string& key, const data::TokenizedDataset& dataset,
                                           const data::DatasetOptions& options);

}  // namespace tessera::train
