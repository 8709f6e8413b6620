// Whether a schedule can run, and how long it takes: found by playing it.
#pragma once

#include <string>
#include <vector>

#include "tessera/pipeline/schedule.h"

namespace tessera::pipeline {

// Empty where the schedule runs: each stage sees each micro batch once forward and once backward, on the rank that has
// it, in an order in which no rank waits for ever. Else what is wrong first.
std::string why_it_does_not_run(const Schedule& schedule);

// Of each rank, the most micro batches, over its stages, of which it keeps activations at once.
std::vector<int> kept_activations(const Schedule& schedule);

// Of one stage and micro batch, in any unit of time.
struct StageTimes {
  double forward = 1;
  double backward_input = 1;
  double backward_weights = 1;
  double message = 0;  // from a rank to another
};

struct Timing {
  double length = 0;         // from the first action of a rank to the last of any
  std::vector<double> busy;  // of each rank

  double bubble(int rank) const { return length - busy[static_cast<size_t>(rank)]; }  // how long it idles
};

// Of a schedule that runs. Sends wait for nobody.
Timing play(const Schedule& schedule, const StageTimes& times);

// The share of a step in which a rank idles, on the average, where a backward takes twice as long as a forward and
// messages no time.
double idle_share(const Schedule& schedule);

}  // namespace tessera::pipeline
