// Ways to share one model over ranks beside data parallelism (docs/parallelism.md), and what a step costs by each: for
// the planner, which shares a model where data parallelism alone does not fit. Arithmetic only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/plan/memory_model.h"

namespace tessera::plan {

struct Cluster {
  int64_t hosts = 1, ranks_of_host = 1;

  int64_t ranks() const { return hosts * ranks_of_host; }
};

// Every way but data parallelism alone, few ranks first. Tensor and context ranks are neighbours within a host; all of
// them together divide the ranks.
std::vector<Sharing> ways_to_share(const Cluster& cluster);

// "parallel.tensor: 2 and parallel.pipeline: 4"
std::string describe(const Sharing& sharing);

// The setup of a rank of a run in which all data-parallel ranks would have `setup`, when they share models this way:
// fewer shards of ZeRO, shorter sequences, tokens of its own between the layers that tensor ranks cut.
TrainingSetup shared(TrainingSetup setup, const Sharing& sharing);

// Of a micro batch, forward and backward. The model has an architecture.
double micro_batch_flops(const ModelCensus& model, const TrainingSetup& setup);

// Of a rank, for an optimizer step.
struct StepCost {
  double arithmetic = 0;     // floating-point operations, those of recomputation among them
  double idle_share = 0;     // of the time: of a pipeline at both ends of a step, by 1F1B
  double bytes_in_host = 0;  // that it sends to ranks of its host …
  double bytes_between = 0;  // … and to others
  double total = 0;          // operations, bytes among them as below
};

// A rank does as many operations as a byte takes on its way. Of a device: half of an A100's 312 TFLOP/s beside 300 GB/s
// of NVLink and 25 GB/s of InfiniBand; of a CPU: 100 GFLOP/s beside 2 GB/s of shared memory and 1.25 GB/s of 10 Gbit
// Ethernet. Ways to share are put in order by these, no more.
struct OperationsOfByte {
  double in_host, between_hosts;
};
inline constexpr OperationsOfByte kOfDevice{500, 6000}, kOfCpu{50, 80};

// Bytes, with e of an element, a rank's tokens T, hidden h, layers l and a ring's factor r(n) = (n - 1) / n:
//   tensor     two reduce-scatters and two all-gathers of T h elements a layer each way, and one more of each:
//              2 (2 l + 1) 2 r(tensor) T h e
//   context    what attention exchanges: nn::bytes_sent_for_token
//   pipeline   a hidden state on and its gradient back: 2 T h e
//   ZeRO       an all-reduce's of gradients and parameters a step, 2 r(shards) P e; at stage 3 of P parameters three
//              for each micro batch
// `part`: as the rank has it, of a model that has an architecture; `samples`: of those ranks together that share one
// model, in a step.
StepCost step_cost(const ModelCensus& whole, const ModelCensus& part, const TrainingSetup& setup,
                   const Sharing& sharing, const Cluster& cluster, int64_t samples);

}  // namespace tessera::plan
