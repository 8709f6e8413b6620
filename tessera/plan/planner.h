// Which configuration to choose: the fastest that fits. Faster is, first of all
//
//   less offload and less sharding   0 on one rank · 1 · 2 · 2 + optimizer in host memory · 3 · 3 + optimizer
//   activation checkpointing         before parameters leave the device, and before anything goes to NVMe
//   … · 3 + both in host memory · 2 + optimizer on NVMe · 3 + optimizer on NVMe · 3 + both on NVMe
//   a smaller micro batch            last, and the more accumulation; bf16 before that, where fp32 was asked for
//
//   models shared between ranks      where data parallelism alone does not fit in memory, and before its NVMe: the way
//                                    that costs least (sharing.h) of those that fit
//
// At stage 3 as many parameters stay whole as fit. That is the order of Hugging Face's guide to DeepSpeed (ZeRO-1, 2, 2
// + offload, 3, 3 + offload, 3 + NVMe, from fast to frugal). On a CPU host memory is the device's, so nothing is
// offloaded to it. Arithmetic only.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tessera/plan/memory_model.h"
#include "tessera/plan/sharing.h"

namespace tessera::plan {

// What one rank may take, bytes.
struct RankShare {
  int64_t device = 0;     // on a CPU: of the host's memory
  int64_t host = 0;       // where the device is not the host
  int64_t nvme = 0;       // of the folder's disk
  std::string nvme_path;  // empty: no folder, no offload to NVMe
};

enum class Fit {
  kYes,    // with a tenth to spare, which is how near the estimate is
  kTight,  // within a tenth of the limit
  kNo,
};
Fit fit_of(const MemoryNeed& need, const RankShare& share, bool on_cpu);
const char* name_of(Fit fit);  // "yes", "tight", "no"

// "stage 2, optimizer on nvme".
std::string describe(const TrainingSetup& setup);

// Every stage and offload at this batch, the fastest first: those that a table shows.
std::vector<TrainingSetup> ladder(const TrainingSetup& wanted, const RankShare& share);

struct PlanInput {
  const ModelCensus& model;
  TrainingSetup wanted;           // stage and offload aside, what the user asks for
  int64_t samples_of_a_rank = 1;  // in an optimizer step: micro batch x accumulation
  RankShare share;
  // Why this version cannot run a setup; empty: it can.
  std::function<std::string(const TrainingSetup&)> refusal = [](const TrainingSetup&) { return std::string(); };
  // For models that ranks share: where these are, and a rank's part of the model, ErrorKind::kConfig where it cannot be
  // shared so. Empty: models are not shared.
  Cluster cluster = {};
  std::function<ModelCensus(const Sharing&)> part_of = {};
};

struct Reason {
  std::string key;  // "zero_optimization.stage"
  std::string text;
};

struct Plan {
  TrainingSetup setup;
  Sharing sharing;
  MemoryNeed need;
  std::vector<Reason> reasons;  // one for each choice
};

// Null where not even the most frugal fits.
std::optional<Plan> choose_plan(const PlanInput& input);

// By our own parser and not_yet_supported(): the first key that this version refuses. For PlanInput::refusal.
std::string refusal_of_this_version(const TrainingSetup& setup);

// `base`, or a short configuration where that is null, with the plan's choices in place of its own.
config::Json ds_config_of(const TrainingSetup& setup, int64_t global_batch, const RankShare& share,
                          const config::Json& base = nullptr);

// The configuration as a file, each choice with its reason as a comment, which our reader accepts.
std::string print_with_reasons(const config::Json& ds_config, const std::vector<Reason>& reasons);

}  // namespace tessera::plan
