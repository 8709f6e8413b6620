// A DeepSpeed configuration, read, checked and resolved: every "auto" filled in, the batch arithmetic done, each key
// explained. Start at load_ds_config (a file) or parse_ds_config (text or a JSON value, as the other doors have it).
//
// Reading and judging are two steps. load/parse refuse what is wrong: syntax, duplicate or unknown keys, types, ranges,
// contradictions (ErrorKind::kConfig, all problems of the file in one error, each with file:line:column). What is right
// but not built yet parses; require_supported() refuses it, and the engine calls that before it starts.
//
// Values; immutable by convention once returned, safe to read from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/config/auto_values.h"
#include "tessera/config/batch_sizes.h"
#include "tessera/config/where.h"
#include "tessera/config/zero_options.h"

namespace tessera::config {

// Whose configuration it is; some keys act at one door alone.
enum class Door {
  kNative,  // `tessera train` and C++ programs
  kPython,  // Python programs, DeepSpeed's among them
};

enum class Dtype { kFp32, kBf16, kFp16 };

// In which dtype each part of the training state lives.
struct Dtypes {
  Dtype compute = Dtype::kFp32;   // parameters, in the forward and backward pass
  Dtype master = Dtype::kFp32;    // the weights that the optimizer updates
  Dtype state = Dtype::kFp32;     // what the optimizer keeps for each weight
  Dtype grad = Dtype::kFp32;      // in which gradients add up over micro batches
  Dtype reduce = Dtype::kFp32;    // in which gradients travel between ranks
  std::optional<Dtype> autocast;  // of torch_autocast, when that is on
  bool cast_inputs = false;       // fp16.auto_cast: floating inputs of forward become the compute dtype
  std::optional<Dtype> buffers;   // data_types.buffer_dtype; none: as the model has them
};

// How the loss is scaled so that small gradients survive 16 bits. See optim/loss_scaler.h.
struct LossScaling {
  bool enabled = false;
  double fixed = 0;  // 0: dynamic
  double initial = 65536;
  int64_t window = 1000;
  int64_t hysteresis = 2;
  bool consecutive_hysteresis = false;
  double min = 1;
};

// How the gradients of several ranks become one.
struct GradientAveraging {
  std::string gradient_allreduce_op = "mean";  // "sum": no division by the ranks
  bool prescale_gradients = false;             // divide before adding up
  double gradient_predivide_factor = 1;        // the part of the division that comes before adding up
};

struct OptimizerOptions {
  std::string type;  // as DeepSpeed spells it: "Adam", "AdamW", "Lamb", …
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  double momentum = 0;
  Json params;  // every parameter of that type, checked, defaults filled in; null where DeepSpeed has None
  std::string where;
};

struct SchedulerOptions {
  std::string type;  // "WarmupLR", …; see optim/schedule.h
  Json params;       // every parameter of that type, checked, defaults filled in; null where DeepSpeed has None
  std::string where;
};

// Acts on code that checkpoints activations; the model decides whether it does. See nn/activation_checkpoint.h.
struct ActivationCheckpointing {
  bool cpu_checkpointing = false;               // inputs wait in host memory
  bool contiguous_memory_optimization = false;  // … in buffers that are used again in every step
  int64_t number_checkpoints = 0;               // for which those buffers have room; 0: not given
  std::string nvme_path;                        // inputs wait in a file in this folder; empty: they do not
  bool profile = false;                         // log the time at each step
};

// Asynchronous file I/O, of everything that is offloaded to files. See storage/io_options.h.
struct AioOptions {
  int64_t block_bytes = 1 << 20;  // of one request
  int queue_depth = 8;            // requests in flight, of each thread
  int intra_op_parallelism = 1;   // threads that share a transfer
  bool single_submit = false;
  bool overlap_events = true;
};

// What DeepSpeed does not have: the block `tessera`, which DeepSpeed passes over.
struct OwnOptions {
  bool delayed_update = false;        // the update runs beside the next step; see zero/delayed_update.h
  int64_t delayed_update_after = 40;  // applied steps
  std::optional<bool> lazy_publish;   // new weights arrive as forwards need them; see zero/policy.h
  int64_t host_memory_limit = 0;      // bytes that this process may take; 0: no limit of ours
};

// One row of the resolved configuration.
struct ResolvedKey {
  std::string path;      // "zero_optimization.stage"
  Json value;            // after "auto", defaults and the batch arithmetic
  std::string origin;    // "ds.json:3:5", "default", "auto at ds.json:4:5 -> micro x accumulation x ranks"
  bool given = false;    // written by the user, "auto" included
  std::string where;     // its place when it is given, else empty
  bool acts = true;      // its value matters here
  bool of_host = false;  // ranks may differ in it
};

struct DsConfig {
  std::string name;  // the file, for messages
  Door door = Door::kNative;
  BatchSizes batch;
  Dtypes dtypes;
  LossScaling loss_scaling;
  bool skip_nonfinite = true;  // bf16.check_grad_overflow; false: such gradients go into the weights
  GradientAveraging averaging;
  double gradient_clipping = 1.0;  // global L2 norm; 0: no clipping
  ZeroOptions zero;
  std::optional<OptimizerOptions> optimizer;  // none: the program brings its own
  std::optional<SchedulerOptions> scheduler;
  ActivationCheckpointing activation_checkpointing;
  AioOptions aio;
  OwnOptions own;
  bool dataloader_drop_last = false;
  std::optional<int64_t> steps_per_print;  // none: never
  bool wall_clock_breakdown = false;

  std::vector<std::string> warnings;  // one line each, with its place; the caller logs them
  std::vector<ResolvedKey> keys;      // every key that applies, in the order of the table

  // The resolved value of any key of the table, e.g. "aio.queue_depth"; an unknown path is our bug.
  const Json& value(std::string_view path) const;
};

struct DsConfigInput {
  int64_t data_parallel_size = 1;
  Door door = Door::kNative;
  AutoValues auto_values = {};
  // False for callers whose users pass unknown keys on purpose: those become warnings, and text that spells a number or
  // a bool ("true", "16") is taken as such, as DeepSpeed does.
  bool unknown_keys_are_errors = true;
  bool may_lower_micro_batch = false;  // see BatchRequest::may_lower_micro; a warning says what was changed
};

DsConfig load_ds_config(const std::string& path, const DsConfigInput& input);

// `name` is shown as the file in every place.
DsConfig parse_ds_config(const std::string& json_text, const std::string& name, const DsConfigInput& input);

// Of a value that a program built; `base` is the place shown for all of its keys, e.g. "the config argument".
DsConfig parse_ds_config(const Json& value, const std::string& base, const DsConfigInput& input);

// Of an object that stands inside another file, with its places.
DsConfig parse_ds_config(const Document& document, const DsConfigInput& input);

// What the configuration asks for that this version does not do, one entry a key. Empty: all of it is supported.
struct NotYet {
  std::string path;
  std::string what;   // "'fp16.enabled' is true: not supported yet"
  std::string where;  // place of the key
  std::string fix;
};
std::vector<NotYet> not_yet_supported(const DsConfig& config);

// A line "path = value" for each key that acts and that ranks may not differ in: of what the ranks compare when they
// start.
std::string shared_lines(const std::vector<ResolvedKey>& keys);

// Throws ErrorKind::kConfig that lists not_yet_supported(), if there is any.
void require_supported(const DsConfig& config);

}  // namespace tessera::config
