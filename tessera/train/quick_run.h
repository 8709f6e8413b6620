// A run that is said on the command line alone: `tessera train --model FOLDER --task sft --data FILE.jsonl --lora 16`
// makes a run file of it, with settings that usually train well, and runs that.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::train {

struct QuickRun {
  std::string model;  // a folder
  std::string task;
  std::vector<std::string> data, eval;  // files, patterns, folders
  int64_t lora = 0;                     // rank; 0: the model itself is trained
  std::string output = "out";
};

// The run file, in YAML. ErrorKind::kUsage where model, task or data is missing, kConfig for an unknown task, kData for
// a folder without a model.
std::string quick_run_text(const QuickRun& asked);

// Writes it to <output>/run.yaml, whose path it returns, and prints it. Ranks that write the same do no harm.
std::string write_quick_run(const QuickRun& asked, bool prints);

}  // namespace tessera::train
