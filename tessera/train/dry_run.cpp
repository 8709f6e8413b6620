// `tessera train --dry-run`: what a run would do, without its ranks.
#include <fmt/format.h>

#include <cstdio>

#include "tessera/base/format.h"
#include "tessera/base/log.h"
#include "tessera/data/loader.h"
#include "tessera/train/run.h"
#include "tessera/train/run_data.h"
#include "tessera/train/run_setup.h"
#include "tessera/train/tasks.h"

namespace tessera::train {

void dry_run(const config::RunFile& given, int64_t ranks, int64_t ranks_of_host) {
  const config::RunFile run = check_run(given, ranks);
  const models::FolderModel model = read_model_of(run);
  const auto tokenizer = load_tokenizer_of(run, *model.model);
  const layout::MeshShape mesh = mesh_shape_of(run, ranks);
  const int64_t readers = mesh.readers();
  const config::DsConfig config = config::resolve_ds_config(run, ds_config_input(*model.model, readers));
  for (const std::string& warning : config.warnings) log_warning("{}", warning);

  const plan::ModelCensus census = census_of_whole(run, model);
  if (run.training.memory_check) {
    plan::check_fits({.model = memory_census(run, model, mesh, stages_of(run, model, mesh, config.batch)),
                      .setup = memory_setup(run, config, mesh.shards()),
                      .room = plan::machine_room(swap_folder(run, config)),
                      .ranks_of_host = ranks_of_host,
                      .samples_of_a_rank = config.batch.micro * config.batch.accumulation,
                      .where = run.name});
  }
  std::string text;
  const RunData data =
      read_run_data(run, *tokenizer, static_cast<int>(readers),
                    {.say = [&](const std::string& line) { text += fmt::format("  data     {}\n", line); },
                     .doubt = [](const std::string& line) { log_warning("{}", line); }});
  const int64_t per_epoch = data::steps_in_epoch(data.train.size, {.micro_batch = config.batch.micro,
                                                                   .accumulation = config.batch.accumulation,
                                                                   .world_size = readers,
                                                                   .drop_last = config.dataloader_drop_last});
  fmt::print("{} is ready to train; nothing was started\n", run.name);
  const std::string kept =
      census.quantized > 0 ? fmt::format(", {} of them as NF4", format_count(census.quantized)) : "";
  fmt::print("  model    {}, {} parameters{}\n", run.model.path, format_count(census.params), kept);
  fmt::print("  stage    ZeRO stage {} on {}\n", config.zero.stage, ranks_in_words(mesh));
  const auto sharing = shared_sequences_of(run, model, config, mesh, run.training.device == "cuda");
  if (sharing) fmt::print("  context  {}\n", sharing->in_words());
  fmt::print("  batch    {} per step: micro batch {} x {} x {}\n", count_of(config.batch.global, "sample"),
             config.batch.micro, count_of(config.batch.accumulation, "accumulation step"), count_of(readers, "rank"));
  fmt::print("  steps    {}, {} per epoch\n", format_count(steps_of_run(run, per_epoch)), format_count(per_epoch));
  fmt::print("{}  output   {}\n", text, run.output);
}

}  // namespace tessera::train
