// What a run trains on and what it holds out, read from the files that its run file names.
#pragma once

#include <functional>
#include <memory>

#include "tessera/data/collator.h"
#include "tessera/train/task.h"

namespace tessera::train {

struct RunData {
  std::unique_ptr<TaskData> training, held_out;  // the latter null where data.eval names nothing
  data::Samples<data::Batch> train, eval;        // which borrow those; eval may be empty
  std::vector<size_t> eval_numbers;              // of eval's samples, in held_out or, of a share, in training

  // TaskData::eval_tallies of what is held out. Collective.
  std::vector<double> eval_tallies(NetworkEngine& engine) const;
};

// `say` hears a line of what was read, and `doubt` what is probably not meant. Errors: those of the files;
// ErrorKind::kConfig where data.eval_share leaves too few samples on either side for the ranks.
struct Listener {
  std::function<void(const std::string& line)> say, doubt;
};
RunData read_run_data(const config::RunFile& run, const data::Tokenizer& tokenizer, int ranks, const Listener& to);

}  // namespace tessera::train
