// The run file of `tessera train`: which model, on which data, how long, with which ds_config. YAML or JSON, checked as
// strictly as the ds_config, by the same kind of table.
//
//   model:     {path: models/minilm, init: pretrained, dropout: null}
//   tokenizer: models/minilm                # default: model.path
//   task:      mlm
//   data:      {train: a.parquet, eval: b.parquet, text_column: text, max_length: 128, padding: max_length,
//               mlm_probability: 0.15}
//   training:  {epochs: 3, max_steps: 0, seed: 42, eval_steps: 0, save_steps: 0, keep_last: 2, device: auto,
//               activation_checkpointing: false}
//   deepspeed: ds_config.json               # or the object itself
//   output:    out
//   monitors:  [jsonl]
//
// A path written in the file is relative to the file's folder; one given by an override, to the current folder. The
// ds_config is read along with the run file, so that its errors come early, and resolved once the number of ranks is
// known. Errors are ErrorKind::kConfig with file:line:column. A value; safe to read from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/config/ds_config.h"
#include "tessera/config/where.h"

namespace tessera::config {

struct RunFile {
  struct Model {
    enum class Init { kPretrained, kRandom };
    enum class Quantization { kNone, kNf4 };
    std::string path;  // a folder with config.json and weights
    Init init = Init::kPretrained;
    std::optional<double> dropout;                             // overrides config.json
    std::optional<double> router_balance_loss, router_z_loss;  // … (nn/router.h)
    std::vector<std::string> freeze;  // names and patterns of parameters and modules (models/freezing.h)
    Quantization quantization = Quantization::kNone;  // of what an adapter leaves frozen (models/quantized_model.h)
  };
  // LoRA (models/adapters.h).
  struct Adapter {
    static constexpr int64_t kLargestRank = 1'000'000;  // beyond any layer's width; products do not overflow

    int64_t rank = 0;  // 0: the model itself is trained
    double alpha = 0;
    double dropout = 0;
    bool use_rslora = false;
    bool use_dora = false;
    std::vector<std::string> targets = {"all-linear"};
    std::vector<std::string> modules_to_save;
    std::string path;  // of one to go on from, in PEFT's format; empty: a new one
  };
  struct Data {
    enum class Padding { kMaxLength, kLongest };
    enum class LongText { kTruncate, kChunk };
    enum class Packing { kAuto, kNone, kFill, kFit };
    std::vector<std::string> train;  // files, patterns or folders; at least one
    std::vector<std::string> eval;   // may be empty
    double eval_share = 0;           // of what `train` holds, where `eval` is empty
    std::vector<double> weights;     // of each entry of `train`; empty: all samples of all
    std::string cache = "auto";      // a folder, auto or none
    std::string text_column = "text";
    int64_t max_length = 128;  // tokens
    LongText long_text = LongText::kTruncate;
    bool drop_empty = true;
    Padding padding = Padding::kMaxLength;
    Packing packing = Packing::kAuto;
    std::string source_column = "source";  // of seq2seq
    std::string target_column = "target";
    std::string source_prefix;
    int64_t max_target_length = 128;  // tokens
    std::string text_pair_column;     // of classification; empty: one text a row
    std::string label_column = "label";
    std::vector<std::string> labels;  // in the order of their numbers; empty: what the model or the data say
    std::string chat_template;        // a name, a file, or empty: the tokenizer's own
    double mlm_probability = 0.15;
  };
  // Of the task dpo (train/preference_loss.h).
  struct Dpo {
    enum class Loss { kSigmoid, kHinge, kIpo };
    Loss loss = Loss::kSigmoid;
    double beta = 0.1;
    double label_smoothing = 0;  // share of pairs whose preference is taken to be the wrong way round
  };
  struct Training {
    double epochs = 3;
    int64_t max_steps = 0;  // optimizer steps; 0: as `epochs` says
    int64_t seed = 42;
    int64_t eval_steps = 0;                 // evaluate every so many optimizer steps; 0: at the end of each epoch
    int64_t eval_samples = 0;               // of one evaluation; 0: all
    bool eval_at_start = false;             // also before the first step
    int64_t eval_bleu = 0;                  // of seq2seq: texts that an evaluation has the model write; 0: none
    int64_t save_steps = 0;                 // save every so many optimizer steps; 0: at the end of each epoch
    int64_t keep_last = 2;                  // checkpoints that are kept; 0: all
    int64_t keep_every = 0;                 // and those whose step is a multiple of this
    bool keep_best = false;                 // save and keep the one of the lowest loss on held-out text
    std::string best_by;                    // a metric of evaluations; empty: the loss, and nothing is exported by it
    int64_t patience = 0;                   // evaluations without a better one, then the run stops; 0: it never does
    int64_t max_bad_steps = 10;             // in a row, of a loss or gradients that are not finite; 0: any number
    bool async_save = true;                 // write them beside training
    std::string device = "auto";            // auto, cpu or cuda
    bool memory_check = true;               // refuse a run that cannot fit, before it allocates
    bool activation_checkpointing = false;  // each layer is computed again in backward
  };
  struct Parallel {
    static constexpr int64_t kMostRanks = 1'000'000;
    int64_t tensor = 1;   // ranks over which each matrix is cut (nn/tensor_axis.h)
    int64_t context = 1;  // ranks that share the tokens of each sequence (nn/context_axis.h)
    std::string context_attention = "auto";
    int64_t expert = 1;     // data-parallel ranks over which experts are shared out (nn/expert_axis.h)
    int64_t replicate = 1;  // groups of data-parallel ranks, over each of which training state is sharded
    int64_t pipeline = 1;   // ranks over which the layers are spread (pipeline/schedule.h)
    int64_t ranks_of_a_sample() const { return tensor * context * pipeline; }
    int64_t ranks_go_round_by() const { return ranks_of_a_sample() * expert * replicate; }
    std::string schedule = "1f1b";
    int64_t stages_per_rank = 0;           // 0: as many as the schedule wants
    std::string partition = "arithmetic";  // models/stages.h
    std::vector<int64_t> stage_sizes;      // by hand; empty: by `partition`
  };

  std::string name;  // the run file, for messages
  Model model;
  std::string tokenizer;  // a folder
  std::string task;
  Adapter adapter;
  Data data;
  Dpo dpo;
  Training training;
  Parallel parallel;
  Document deepspeed;                             // the ds_config as written, overrides applied; see resolve_ds_config
  std::string output = "out";                     // metrics.jsonl, checkpoints/, export/
  std::vector<std::string> monitors = {"jsonl"};  // who hears of steps and evaluations (monitor/monitors.h)

  std::vector<ResolvedKey> keys;  // every key with its value and where it came from
};

// `overrides` are "training.max_steps=50" or "deepspeed.zero_optimization.stage=3": the value is YAML, and a key under
// `deepspeed` is set also when that names a file. An unknown key is an error, like one in the file.
RunFile load_run_file(const std::string& path, const std::vector<std::string>& overrides);

DsConfig resolve_ds_config(const RunFile& run, const DsConfigInput& input);

}  // namespace tessera::config
