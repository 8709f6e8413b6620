// What `tessera estimate` prints of a model: what was counted, what this machine has, each stage and offload with what
// a rank needs and whether it fits. As text for people and as JSON for programs.
#pragma once

#include <string>
#include <vector>

#include "tessera/plan/planner.h"

namespace tessera::plan {

struct EstimateReport {
  const ModelCensus& model;
  const ModelCensus& part;  // a rank's, of a model that ranks share this way; else the model
  Sharing sharing;
  TrainingSetup wanted;     // of all ranks: batch, dtypes, optimizer; the rows go through stages and offloads
  bool has_config = false;  // then `wanted` itself is shown first, term by term
  RankShare share;
  std::vector<TrainingSetup> rows;
};

// Stages 0 to 3, each without offload and with what can leave the device at it: to host memory where that is another,
// to NVMe.
std::vector<TrainingSetup> table_rows(const TrainingSetup& wanted);

std::string report_text(const EstimateReport& report);
config::Json report_json(const EstimateReport& report);

}  // namespace tessera::plan
