// `tessera train --dry-run`: what a run would do, without its ranks.
#include <fmt/format.h>

#include <cstdio>

#include "tessera/base/format.h"
#include "tessera/base/log.h"
#include "tessera/data/loader.h"
#include "tessera/train/run_setup.h"
#include "tessera/train/text_data.h"

namespace tessera::train {
namespace {

data::TokenizedDataset read_and_describe(const config::RunFile& run, const std::string& key,
                                         const std::vector<std::string>& paths, const data::Tokenizer& tokenizer,
                                         int64_t ranks, std::string& text) {
  data::TokenizedDataset dataset = read_dataset(run, key, paths, tokenizer, static_cast<int>(ranks));
  const data::DatasetOptions options = dataset_options(run, paths);
  text += fmt::format("  data     {}\n", describe_dataset(key, dataset, options));
  for (const std::string& doubt : doubts_of_dataset(key, dataset, options)) log_warning("{}", doubt);
  return dataset;
}

}  // namespace

void dry_run(const config::RunFile& run, int64_t ranks) {
  check_run(run, ranks);
  const models::BertConfig model = read_model_config(run);
  const auto tokenizer = load_tokenizer_of(run, model);
  const config::DsConfig config = config::resolve_ds_config(run, ds_config_input(model, ranks));
  for (const std::string& warning : config.warnings) log_warning("{}", warning);

  const plan::ModelCensus census = memory_census(run, model);
  if (run.training.memory_check) {
    plan::check_fits({.model = census,
                      .setup = memory_setup(run, config, ranks),
                      .room = plan::machine_room(swap_folder(run, config)),
                      .ranks_of_host = ranks,
                      .samples_of_a_rank = config.batch.micro * config.batch.accumulation,
                      .where = run.name});
  }
  std::string text;
  const data::TokenizedDataset dataset = read_and_describe(run, "data.train", run.data.train, *tokenizer, ranks, text);
  if (!run.data.eval.empty()) read_and_describe(run, "data.eval", run.data.eval, *tokenizer, ranks, text);
  const int64_t per_epoch = data::steps_in_epoch(dataset.size(), {.micro_batch = config.batch.micro,
                                                                  .accumulation = config.batch.accumulation,
                                                                  .world_size = ranks,
                                                                  .drop_last = config.dataloader_drop_last});
  fmt::print("{} is ready to train; nothing was started\n", run.name);
  fmt::print("  model    {}, {} parameters\n", run.model.path, format_count(census.params));
  fmt::print("  stage    ZeRO stage {} on {}\n", config.zero.stage, count_of(ranks, "rank"));
  fmt::print("  batch    {} per step: micro batch {} x {} x {}\n", count_of(config.batch.global, "sample"),
             config.batch.micro, count_of(config.batch.accumulation, "accumulation step"), count_of(ranks, "rank"));
  fmt::print("  steps    {}, {} per epoch\n", format_count(steps_of_run(run, per_epoch)), format_count(per_epoch));
  fmt::print("{}  output   {}\n", text, run.output);
}

}  // namespace tessera::train
