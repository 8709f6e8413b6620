// Checkpoints as programs meet them: what can be said when one is saved (Engine::save_checkpoint) or loaded, and what
// becomes of it afterwards. docs/checkpoint-format.md says what lies on disk; saver.h and load.h do the work.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/error.h"

namespace tessera::checkpoint {

using TensorMap = std::map<std::string, at::Tensor>;

// Which checkpoints of a folder are kept.
struct Retention {
  int64_t keep_last = 0;   // 0: all
  int64_t keep_every = 0;  // also those whose step is a multiple of this; 0: none
};

enum class TagValidation { kIgnore, kWarn, kFail };  // when ranks name different tags

struct SaveOptions {
  bool in_background = false;    // return once the state is copied; not where host memory is too short for a copy
  bool trainable_only = false;   // leave frozen parameters out
  bool bytes = true;             // false: leave parameters out whose elements are bytes (layout::Storage)
  bool optimizer_states = true;  // false: the weights alone
  bool sets_latest = true;       // false: `latest` goes on naming the one before
  bool node_local = false;       // each host writes to its own disk: its first rank makes the folder there
  TagValidation tag_validation = TagValidation::kWarn;
  Retention retention = {};
  bool diverged = false;  // the last loss or gradients were not finite: retention keeps the last checkpoint before, too
};

// Tensors that a program gives beside its client state. Of any shape; in the dtypes of safetensors.
struct ClientTensors {
  TensorMap shared = {};   // rank 0's, which every rank gets back
  TensorMap of_rank = {};  // this rank's own, which it gets back where the number of ranks is the same
};

// A save in the background failed. Everything else is fine: training can go on.
class SaveFailed : public Error {
 public:
  using Error::Error;
};

struct LoadOptions {
  bool strict = true;            // false: names that the model or the checkpoint lacks are skipped
  bool bytes = true;             // false: parameters of bytes stay as they are, and the checkpoint has none
  bool optimizer_states = true;  // false: the optimizer starts afresh
  bool schedule = true;          // false: the schedule starts afresh
  bool weights_only = false;     // neither optimizer, schedule, counts, loss scale nor random numbers
  bool rounds_weights = false;   // the master weights become what the compute dtype holds of them
  bool fall_back = false;        // a damaged checkpoint: take the newest intact one in the folder
  // (old, new) beginnings of names: a parameter "new…" of the model takes what is stored as "old…".
  std::vector<std::pair<std::string, std::string>> renames = {};
};

// A model's weights as files, as transformers has them.
enum class WeightFormat { kSafetensors, kStateDict };

struct WeightFiles {
  WeightFormat format = WeightFormat::kSafetensors;
  uint64_t max_shard_bytes = 5'000'000'000;         // transformers' own default; a larger tensor has a file of its own
  std::map<std::string, std::string> aliases = {};  // other name of a shared tensor -> its name; state dicts have both
};

// From a checkpoint to a folder that transformers loads: config.json, weights, tokenizer files; or to the weights
// alone.
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

// Weights from elsewhere as such a folder.
struct WeightsToExport {
  std::filesystem::path model;   // where config.json and the tokenizer files come from
  std::filesystem::path output;  // as ExportInput's
  std::map<std::string, std::vector<int64_t>> shapes;
  at::ScalarType dtype = at::kFloat;
  std::function<at::Tensor(const std::string& name)> read;  // of that shape and dtype; asked for one at a time
};
void export_weights(const WeightsToExport& weights);  // errors: as export_hf's

}  // namespace tessera::checkpoint
