// What a run file leads to before anything is trained: the model's sizes, the tokenizer, the batch, the steps. Shared
// by the run itself, `tessera train --dry-run` and the checks before ranks are started.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tessera/config/run_file.h"
#include "tessera/data/tokenizer.h"
#include "tessera/layout/mesh_shape.h"
#include "tessera/models/adapters.h"
#include "tessera/models/model.h"
#include "tessera/models/stages.h"
#include "tessera/nn/context_axis.h"
#include "tessera/plan/memory_check.h"
#include "tessera/train/task.h"

namespace tessera::train {

// The adapter that the run trains; nothing where it trains the model itself.
std::optional<models::AdapterOptions> adapter_of(const config::RunFile& run);

// What the run trains, as the class that the task is for, with its adapter, or with what is frozen of it, and its
// frozen weights quantized if they are to be.
models::FolderModel read_model_of(const config::RunFile& run);

// What config.json has to say of the labels that the run tells apart, beside what the model's folder has; an empty
// object where its task has none.
nlohmann::ordered_json config_of_labels(const config::RunFile& run);

// What the run's evaluations report beside the loss.
std::vector<Metric> metrics_of(const config::RunFile& run);

// Of the folder that the run file names, checked against the model.
std::unique_ptr<data::Tokenizer> load_tokenizer_of(const config::RunFile& run, const models::Model& model);

// How so many ranks share the run: data parallel but for parallel.pipeline, outermost, parallel.context and
// parallel.tensor, whose ranks are neighbours. Where one is 1, the mesh has no such axis. ErrorKind::kConfig where they
// do not factor.
layout::MeshShape mesh_shape_of(const config::RunFile& run, int64_t ranks);
std::string ranks_in_words(const layout::MeshShape& mesh);  // "4 ranks: dp_shard 2 × tp 2"

// The ds_config for so many data-parallel ranks. Only the number of steps may be missing, which follows from the batch.
config::DsConfigInput ds_config_input(const models::Model& model, int64_t data_ranks);

// Steps of the whole run.
int64_t steps_of_run(const config::RunFile& run, int64_t steps_per_epoch);

// What `tessera train` fills in that the run file leaves open.
void set_defaults_of_training(config::DsConfig& config);

// For plan::check_fits: all but the room and the ranks of a host. The census is of the rank's part that takes
// most.
plan::TrainingSetup memory_setup(const config::RunFile& run, const config::DsConfig& config, int64_t data_ranks);
plan::ModelCensus memory_census(const config::RunFile& run, const models::FolderModel& model,
                                const layout::MeshShape& mesh, const std::optional<models::StageBounds>& stages);
plan::ModelCensus census_of_whole(const config::RunFile& run, const models::FolderModel& model);

// Which layers the ranks of a pipeline have; nothing where the mesh has no such axis. ErrorKind::kConfig where the
// model, the task or the schedule do not go with one of so many ranks. `seconds`: of each link, once they are measured.
std::optional<models::StageBounds> stages_of(const config::RunFile& run, const models::FolderModel& model,
                                             const layout::MeshShape& mesh, const config::BatchSizes& batch,
                                             const std::vector<double>& seconds = {});

// How ranks share the tokens of each sequence.
struct SharedSequences {
  nn::SharedHeads heads;
  int64_t head_size = 0, layers = 0;
  nn::ContextAttention attention{};

  std::string in_words() const;  // "ring: a rank sends 24 KiB for each of its tokens"
};

// Nothing where the mesh has no such axis. ErrorKind::kConfig where the task, the model or its heads do not go with it.
std::optional<SharedSequences> shared_sequences_of(const config::RunFile& run, const models::FolderModel& model,
                                                   const config::DsConfig& config, const layout::MeshShape& mesh,
                                                   bool on_gpus);

// Where the run swaps to, or could: a folder.
std::string swap_folder(const config::RunFile& run, const config::DsConfig& config);

}  // namespace tessera::train
