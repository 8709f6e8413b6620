// Which rank of a pipeline runs which stage on which micro batch, and in which order. A schedule is data: a list of
// actions for each rank. What a rank waits for follows from the order of stages, so nothing is said of messages.
//
//   Schedule schedule = make_schedule("1f1b", {.ranks = 4, .micro_batches = 16});
//   schedule.actions[2]      what rank 2 does in a step
//
// Stages are consecutive parts of a model, numbered from its inputs to its loss; a rank may have several. make_schedule
// checks what it made (check.h). Arithmetic only; any thread.
//
// Sources: GPipe, arXiv 1811.06965; 1F1B, arXiv 1806.03377 and 2006.09503; interleaved, arXiv 2104.04473, section 2.2;
// ZB-H1, arXiv 2401.10241; DualPipeV, the cut-in-half form of arXiv 2412.19437, section 3.2.1.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::pipeline {

enum class Work {
  kForward,
  kBackward,         // the gradients of the stage's input and of its weights
  kBackwardInput,    // those of its input alone, for which another rank waits
  kBackwardWeights,  // the rest, any time later
};

struct Action {
  Work work = Work::kForward;
  int stage = 0;
  int micro_batch = 0;

  bool operator==(const Action&) const = default;
};

// "forward of micro batch 3 on stage 1"
std::string describe(const Action& action);

struct Schedule {
  std::string name;
  int ranks = 1;
  int micro_batches = 1;
  std::vector<int> rank_of_stage;
  std::vector<std::vector<Action>> actions;  // of each rank, in order

  int stages() const { return static_cast<int>(rank_of_stage.size()); }
  std::vector<int> stages_of(int rank) const;
};

struct ScheduleSize {
  int ranks = 1;
  int micro_batches = 1;
  int stages_per_rank = 0;  // 0: as many as the schedule wants
};

// ErrorKind::kConfig for a name that is not there, or a size that the schedule cannot have. `where` they were given.
Schedule make_schedule(const std::string& name, ScheduleSize size, const std::string& where = "the pipeline");

// For a step of another number of micro batches, such as the last one of an epoch: the same schedule, or over the same
// stages all forwards and then all backwards where it cannot have so few.
Schedule with_micro_batches(const Schedule& schedule, int micro_batches);

}  // namespace tessera::pipeline
