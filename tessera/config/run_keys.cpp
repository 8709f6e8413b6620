// The rows of the run file.
#include "tessera/config/key_table.h"

namespace tessera::config {
namespace {

using enum Status;
using enum Type;

constexpr Kind at_least(double low, Type type = kInt) { return {.type = type, .low = low}; }
constexpr Kind kPath{kText};
constexpr Kind kBlock{kObject};

constexpr Key kKeys[] = {
    {"model", kBlock, "required", kHonoured, "the net"},
    {"model.path", kPath, "required", kHonoured, "a folder with config.json and weights"},
    {"model.init",
     {.type = kChoice, .choices = "pretrained|random"},
     "\"pretrained\"",
     kHonoured,
     "take the folder's weights, or random ones"},
    {"model.dropout",
     {.type = kNumber, .low = 0, .high = 1, .below_high = true},
     "null",
     kHonoured,
     "overrides the dropout of config.json"},
    {"tokenizer", kPath, "null", kHonoured, "a folder; default: model.path"},
    {"task", {.type = kText}, "required", kHonoured, "what is learned, e.g. mlm"},
    {"data", kBlock, "required", kHonoured, "the text"},
    {"data.train",
     {.type = kTextList},
     "required",
     kHonoured,
     "what to train on: files, patterns such as shards/*.parquet, or folders"},
    {"data.eval", {.type = kTextList}, "[]", kHonoured, "what to evaluate on, in the same form"},
    {"data.text_column", {.type = kText}, "\"text\"", kHonoured, "column of a table, key of a JSON line"},
    {"data.max_length", at_least(1), "128", kHonoured, "tokens of one sample at most"},
    {"data.long_text",
     {.type = kChoice, .choices = "truncate|chunk"},
     "\"truncate\"",
     kHonoured,
     "a row that is longer: cut it, or make several samples of it"},
    {"data.drop_empty", {.type = kBool}, "true", kHonoured, "leave out rows without text"},
    {"data.padding",
     {.type = kChoice, .choices = "max_length|longest"},
     "\"max_length\"",
     kHonoured,
     "pad to max_length, or to the longest sample of the batch"},
    {"data.mlm_probability",
     {.type = kNumber, .low = 0, .high = 1, .above_low = true},
     "0.15",
     kHonoured,
     "share of the tokens that are to be predicted"},
    {"training", kBlock, "{}", kHonoured, "how long, and what is kept"},
    {"training.epochs", {.type = kNumber, .low = 0, .above_low = true}, "3", kHonoured, "passes over the data"},
    {"training.max_steps", at_least(0), "0", kHonoured, "optimizer steps; 0: as epochs says"},
    {"training.seed", at_least(0), "42", kHonoured, "of every random choice"},
    {"training.eval_steps", at_least(0), "0", kHonoured, "optimizer steps between evaluations; 0: each epoch"},
    {"training.eval_samples", at_least(0), "0", kHonoured, "held-back samples of one evaluation; 0: all"},
    {"training.eval_at_start", {.type = kBool}, "false", kHonoured, "evaluate before the first step, too"},
    {"training.save_steps", at_least(0), "0", kHonoured, "optimizer steps between checkpoints; 0: each epoch"},
    {"training.keep_last", at_least(0), "2", kHonoured, "checkpoints that are kept; 0: all"},
    {"training.keep_every", at_least(0), "0", kHonoured, "also keep checkpoints whose step is a multiple of this"},
    {"training.keep_best",
     {.type = kBool},
     "false",
     kHonoured,
     "save after each evaluation with the lowest loss so far, and keep that checkpoint"},
    {"training.async_save",
     {.type = kBool},
     "true",
     kHonoured,
     "write checkpoints beside training; takes host memory as large as a rank's shard of a checkpoint"},
    {"training.device",
     {.type = kChoice, .choices = "auto|cpu|cuda"},
     "\"auto\"",
     kHonoured,
     "auto: cuda where there is one"},
    {"training.memory_check",
     {.type = kBool},
     "true",
     kHonoured,
     "refuse at once a run whose model state cannot fit in this machine's memory"},
    {"training.activation_checkpointing",
     {.type = kBool},
     "false",
     kHonoured,
     "compute each layer again in backward instead of keeping its activations"},
    {"deepspeed", {kAny}, "required", kHonoured, "a ds_config: its file, or the object itself"},
    {"output", kPath, "\"out\"", kHonoured, "folder of metrics.jsonl, checkpoints/ and export/"},
};

}  // namespace

std::span<const Key> run_file_keys() { return kKeys; }

}  // namespace tessera::config
