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
    {"model", kBlock, "required", kHonoured, "the model"},
    {"model.path", kPath, "required", kHonoured, "a folder with config.json and weights"},
    {"model.init",
     {.type = kChoice, .choices = "pretrained|random"},
     "\"pretrained\"",
     kHonoured,
     "start from the folder's weights, or from random ones"},
    {"model.dropout",
     {.type = kNumber, .low = 0, .high = 1, .below_high = true},
     "null",
     kHonoured,
     "overrides config.json's dropout"},
    {"tokenizer", kPath, "null", kHonoured, "a folder with a tokenizer; null: model.path"},
    {"task", {.type = kText}, "required", kHonoured, "what to train for; mlm: masked language modelling"},
    {"data", kBlock, "required", kHonoured, "the text"},
    {"data.train",
     {.type = kTextList},
     "required",
     kHonoured,
     "what to train on: files, patterns such as shards/*.parquet, or folders"},
    {"data.eval", {.type = kTextList}, "[]", kHonoured, "what to evaluate on, in the same form"},
    {"data.text_column",
     {.type = kText},
     "\"text\"",
     kHonoured,
     "the column (parquet, csv) or key (jsonl) that holds the text"},
    {"data.max_length", at_least(1), "128", kHonoured, "maximum number of tokens per sample"},
    {"data.long_text",
     {.type = kChoice, .choices = "truncate|chunk"},
     "\"truncate\"",
     kHonoured,
     "what to do with a longer row: cut it, or split it into several samples"},
    {"data.drop_empty", {.type = kBool}, "true", kHonoured, "leave out rows without text"},
    {"data.padding",
     {.type = kChoice, .choices = "max_length|longest"},
     "\"max_length\"",
     kHonoured,
     "pad to max_length, or to the longest sample in the batch"},
    {"data.mlm_probability",
     {.type = kNumber, .low = 0, .high = 1, .above_low = true},
     "0.15",
     kHonoured,
     "fraction of the tokens to predict"},
    {"training", kBlock, "{}", kHonoured, "how long to train, and what to keep"},
    {"training.epochs", {.type = kNumber, .low = 0, .above_low = true}, "3", kHonoured, "passes over the data"},
    {"training.max_steps", at_least(0), "0", kHonoured, "optimizer steps; 0: determined by epochs"},
    {"training.seed", at_least(0), "42", kHonoured, "seed of every random choice"},
    {"training.eval_steps", at_least(0), "0", kHonoured, "optimizer steps between evaluations; 0: once per epoch"},
    {"training.eval_samples", at_least(0), "0", kHonoured, "held-out samples per evaluation; 0: all"},
    {"training.eval_at_start", {.type = kBool}, "false", kHonoured, "also evaluate before the first step"},
    {"training.save_steps", at_least(0), "0", kHonoured, "optimizer steps between checkpoints; 0: once per epoch"},
    {"training.keep_last", at_least(0), "2", kHonoured, "number of checkpoints to keep; 0: all"},
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
     "write checkpoints in the background; takes host memory for a copy of each rank's shard"},
    {"training.device",
     {.type = kChoice, .choices = "auto|cpu|cuda"},
     "\"auto\"",
     kHonoured,
     "device to train on; auto: cuda where available"},
    {"training.memory_check",
     {.type = kBool},
     "true",
     kHonoured,
     "refuse a run whose model state cannot fit in this machine's memory"},
    {"training.activation_checkpointing",
     {.type = kBool},
     "false",
     kHonoured,
     "recompute each layer in backward instead of keeping its activations"},
    {"deepspeed", {kAny}, "required", kHonoured, "a ds_config: a file name, or the object itself"},
    {"output", kPath, "\"out\"", kHonoured, "folder for metrics.jsonl, checkpoints/ and export/"},
    {"monitors",
     {.type = kTextList},
     "[\"jsonl\"]",
     kHonoured,
     "what records steps and evaluations; jsonl: metrics.jsonl"},
};

}  // namespace

std::span<const Key> run_file_keys() { return kKeys; }

}  // namespace tessera::config
