#include "tessera/pipeline/schedule.h"

#include <fmt/format.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/pipeline/check.h"
#include "tessera/pipeline/schedule_kinds.h"

namespace tessera::pipeline {
namespace {

using Actions = std::vector<Action>;

std::string fits_always(const ScheduleSize& /*size*/) { return ""; }

int keeps_all(int /*rank*/, const ScheduleSize& size) { return size.micro_batches; }

Actions all_forwards_first(const std::vector<int>& stages, int micro_batches) {
  Actions actions;
  const auto each = [&](Work work, int stage) {
    for (int micro = 0; micro < micro_batches; ++micro) actions.push_back({work, stage, micro});
  };
  for (const int stage : stages) each(Work::kForward, stage);
  for (auto stage = stages.rbegin(); stage != stages.rend(); ++stage) each(Work::kBackward, *stage);
  return actions;
}

Actions gpipe_of(const ScheduleSize& size, int rank) { return all_forwards_first({rank}, size.micro_batches); }

int keeps_as_many_as_follow(int rank, const ScheduleSize& size) {
  return std::min(size.ranks - rank, size.micro_batches);
}

// Forwards until the first backward can come, then one of each in turn.
Actions one_forward_one_backward_of(const ScheduleSize& size, int rank) {
  Actions actions;
  const int ahead = std::min(size.ranks - 1 - rank, size.micro_batches);
  for (int micro = 0; micro < ahead; ++micro) actions.push_back({Work::kForward, rank, micro});
  for (int micro = ahead; micro < size.micro_batches + ahead; ++micro) {
    if (micro < size.micro_batches) actions.push_back({Work::kForward, rank, micro});
    actions.push_back({Work::kBackward, rank, micro - ahead});
  }
  return actions;
}

// As that, but what a backward has for its weights waits for as many backwards as the rank's number, which keeps as
// much as rank 0 does, and fills what the others idle.
Actions zero_bubble_of(const ScheduleSize& size, int rank) {
  Actions actions;
  int inputs = 0, weights = 0;
  for (const Action& action : one_forward_one_backward_of(size, rank)) {
    if (action.work == Work::kForward) {
      actions.push_back(action);
      continue;
    }
    actions.push_back({Work::kBackwardInput, rank, action.micro_batch});
    if (++inputs > rank) actions.push_back({Work::kBackwardWeights, rank, weights++});
  }
  while (weights < inputs) actions.push_back({Work::kBackwardWeights, rank, weights++});
  return actions;
}

int keeps_one_a_rank(int /*rank*/, const ScheduleSize& size) { return std::min(size.ranks, size.micro_batches); }

// Stage c * ranks + r is the c-th of rank r. Micro batches go through in rounds of as many as there are ranks: a round
// through the first stages, then the same through the second ones, …
int forwards_ahead(int rank, const ScheduleSize& size) {
  return std::min(2 * (size.ranks - 1 - rank) + (size.stages_per_rank - 1) * size.ranks,
                  size.stages_per_rank * size.micro_batches);
}

int keeps_rounds(int rank, const ScheduleSize& size) {
  return std::min(forwards_ahead(rank, size) + 1, size.stages_per_rank * size.micro_batches);
}

Actions interleaved_of(const ScheduleSize& size, int rank) {
  const int count = size.stages_per_rank * size.micro_batches, round = size.ranks * size.stages_per_rank;
  const auto nth = [&](Work work, int number) {
    const int turn = number % round / size.ranks;
    const int chunk = work == Work::kForward ? turn : size.stages_per_rank - 1 - turn;
    return Action{work, chunk * size.ranks + rank, number / round * size.ranks + number % size.ranks};
  };
  Actions actions;
  const int ahead = forwards_ahead(rank, size);
  for (int number = 0; number < ahead; ++number) actions.push_back(nth(Work::kForward, number));
  for (int number = 0; number < count; ++number) {
    if (number + ahead < count) actions.push_back(nth(Work::kForward, number + ahead));
    actions.push_back(nth(Work::kBackward, number));
  }
  return actions;
}

std::string needs_whole_rounds(const ScheduleSize& size) {
  if (size.micro_batches % size.ranks == 0) return "";
  const int below = size.micro_batches / size.ranks * size.ranks;
  return fmt::format("it takes micro batches in rounds of {}, and {} are no multiple: use {}{}", size.ranks,
                     size.micro_batches, below == 0 ? "" : fmt::format("{} or ", below), below + size.ranks);
}

// What a rank of DualPipeV does with its two stages, the first of which takes micro batches down the pipeline and the
// second up again.
class DualPipe {
 public:
  DualPipe(const ScheduleSize& size, int rank) : stages_{rank, 2 * size.ranks - 1 - rank} {
    const int ranks = size.ranks, after = ranks - 1 - rank;
    repeat(2 * after, [&] { forward(0); });
    repeat(rank + 1, [&] { forward(0), forward(1); });
    repeat(after, [&] { backward_input(1), weights(), forward(1); });
    repeat(size.micro_batches - 2 * ranks + rank + 1, [&] { forward(0), backward(1), forward(1), backward(0); });
    repeat(after, [&] { backward(1), forward(1), backward(0); });
    // The later half of these is split, so that the others have the input's gradients sooner.
    for (int i = 0; i <= rank; ++i) {
      const int half = (rank + 1) / 2;
      const bool splits_second = i > half || (i == half && rank % 2 == 1);
      const bool splits_first = i >= half;
      splits_second ? backward_input(1) : backward(1);
      splits_first ? backward_input(0) : backward(0);
    }
    repeat(after, [&] { weights(), backward_input(0); });
    repeat(rank + 1, [&] { weights(); });
  }

  Actions actions;

 private:
  template <class Do>
  static void repeat(int times, const Do& what) {
    for (int i = 0; i < times; ++i) what();
  }

  void forward(int which) { actions.push_back({Work::kForward, stages_[which], forwards_[which]++}); }
  void backward(int which) { actions.push_back({Work::kBackward, stages_[which], backwards_[which]++}); }
  void backward_input(int which) {
    actions.push_back({Work::kBackwardInput, stages_[which], backwards_[which]});
    waiting_.push_back({Work::kBackwardWeights, stages_[which], backwards_[which]++});
  }
  void weights() { actions.push_back(waiting_[given_++]); }

  int stages_[2];
  int forwards_[2] = {0, 0}, backwards_[2] = {0, 0};
  Actions waiting_;  // weights, in order
  size_t given_ = 0;
};

Actions dual_pipe_of(const ScheduleSize& size, int rank) { return DualPipe(size, rank).actions; }

int keeps_two_a_rank(int /*rank*/, const ScheduleSize& size) { return 2 * size.ranks + 1; }

std::string needs_two_a_rank(const ScheduleSize& size) {
  if (size.micro_batches >= 2 * size.ranks) return "";
  return fmt::format("it needs two micro batches for each rank of the pipeline: use {} or more, not {}", 2 * size.ranks,
                     size.micro_batches);
}

template <Actions (*of_rank)(const ScheduleSize&, int rank)>
std::vector<Actions> of_each_rank(const ScheduleSize& size) {
  std::vector<Actions> actions;
  for (int rank = 0; rank < size.ranks; ++rank) actions.push_back(of_rank(size, rank));
  return actions;
}

constexpr Registry<ScheduleKind>::Entry kEntries[] = {
    {"gpipe",
     "all forwards, then all backwards",
     {.most_kept = keeps_all, .actions = of_each_rank<gpipe_of>, .why_not = fits_always}},
    {"1f1b",
     "one forward and one backward in turn: keeps activations of as many micro batches as there are ranks",
     {.most_kept = keeps_as_many_as_follow,
      .actions = of_each_rank<one_forward_one_backward_of>,
      .why_not = fits_always}},
    {"interleaved",
     "1f1b over several stages a rank: idles less, sends more",
     {.stages_per_rank = 0,
      .most_kept = keeps_rounds,
      .actions = of_each_rank<interleaved_of>,
      .why_not = needs_whole_rounds}},
    {"zb1p",
     "1f1b whose weights' gradients wait: idles a third as long, keeps as much on each rank as 1f1b on its first",
     {.splits_backward = true,
      .most_kept = keeps_one_a_rank,
      .actions = of_each_rank<zero_bubble_of>,
      .why_not = fits_always}},
    {"dualpipev",
     "two stages a rank, down the ranks and back: forwards and backwards side by side",
     {.stages_per_rank = 2,
      .folds_back = true,
      .splits_backward = true,
      .most_kept = keeps_two_a_rank,
      .actions = of_each_rank<dual_pipe_of>,
      .why_not = needs_two_a_rank}},
};

std::vector<int> places_of(const ScheduleSize& size, bool folds_back) {
  std::vector<int> ranks;
  for (int stage = 0; stage < size.ranks * size.stages_per_rank; ++stage) {
    const int turn = stage / size.ranks, place = stage % size.ranks;
    ranks.push_back(folds_back && turn % 2 == 1 ? size.ranks - 1 - place : place);
  }
  return ranks;
}

}  // namespace

std::string describe(const Action& action) {
  const char* work = "forward";
  if (action.work == Work::kBackward) work = "backward";
  if (action.work == Work::kBackwardInput) work = "backward (input)";
  if (action.work == Work::kBackwardWeights) work = "backward (weights)";
  return fmt::format("{} of micro batch {} on stage {}", work, action.micro_batch, action.stage);
}

std::vector<int> Schedule::stages_of(int rank) const {
  std::vector<int> own;
  for (int stage = 0; stage < stages(); ++stage) {
    if (rank_of_stage[static_cast<size_t>(stage)] == rank) own.push_back(stage);
  }
  return own;
}

Registry<ScheduleKind> schedules() { return {"pipeline schedule", kEntries}; }

Schedule make_schedule(const std::string& name, ScheduleSize size, const std::string& where) {
  const auto& entry = schedules().find(name, where, ErrorKind::kConfig);
  const ScheduleKind& kind = entry.make;
  const auto refuse = [&](const std::string& what, const std::string& fix) {
    throw Error(ErrorKind::kConfig, {fmt::format("the pipeline schedule {} {}", entry.name, what), where, fix});
  };
  const int wanted = kind.stages_per_rank;
  if (size.stages_per_rank == 0) size.stages_per_rank = wanted == 0 ? 2 : wanted;
  if (wanted == 0 ? size.stages_per_rank < 2 : size.stages_per_rank != wanted) {
    refuse(fmt::format("has {} a rank, not {}", wanted == 0 ? "two stages or more" : fmt::format("{}", wanted),
                       size.stages_per_rank),
           "leave the number of stages a rank out, or choose another schedule");
  }
  if (size.ranks < 1 || size.micro_batches < 1) refuse("needs a rank and a micro batch at least", "use more");
  if (const std::string why = kind.why_not(size); !why.empty()) {
    refuse("cannot run: " + why, "change gradient_accumulation_steps, or choose another schedule");
  }
  Schedule schedule{.name = entry.name,
                    .ranks = size.ranks,
                    .micro_batches = size.micro_batches,
                    .rank_of_stage = places_of(size, kind.folds_back),
                    .actions = kind.actions(size)};
  const std::string why = why_it_does_not_run(schedule);
  TESSERA_INVARIANT(why.empty());
  const std::vector<int> kept = kept_activations(schedule);
  for (int rank = 0; rank < size.ranks; ++rank) {
    TESSERA_INVARIANT(kept[static_cast<size_t>(rank)] <= kind.most_kept(rank, size));
  }
  return schedule;
}

Schedule with_micro_batches(const Schedule& schedule, int micro_batches) {
  const auto& entry = schedules().find(schedule.name, "the pipeline");
  const ScheduleSize size{
      .ranks = schedule.ranks, .micro_batches = micro_batches, .stages_per_rank = schedule.stages() / schedule.ranks};
  if (entry.make.why_not(size).empty()) return make_schedule(schedule.name, size);
  Schedule other{.name = schedule.name,
                 .ranks = schedule.ranks,
                 .micro_batches = micro_batches,
                 .rank_of_stage = schedule.rank_of_stage,
                 .actions = {}};
  for (int rank = 0; rank < other.ranks; ++rank) {
    other.actions.push_back(all_forwards_first(other.stages_of(rank), micro_batches));
  }
  TESSERA_INVARIANT(why_it_does_not_run(other).empty());
  return other;
}

}  // namespace tessera::pipeline
