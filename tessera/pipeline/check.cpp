#include "tessera/pipeline/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <tuple>

namespace tessera::pipeline {
namespace {

// What has been done, and when. Both halves of a backward give the input's gradient or the weights'.
class Progress {
 public:
  explicit Progress(const Schedule& schedule) : schedule_(schedule), next_(schedule.actions.size(), 0) {}

  // Of what the action waits for: when it is there for the action's rank; nothing while it is not.
  std::optional<double> ready_at(const Action& action, double message) const {
    double ready = 0;
    for (const Action& wanted : wanted_by(action)) {
      const auto found = ended_.find(key(wanted));
      if (found == ended_.end()) return std::nullopt;
      const bool travels = rank_of(wanted.stage) != rank_of(action.stage);
      ready = std::max(ready, found->second + (travels ? message : 0));
    }
    return ready;
  }

  void end(const Action& action, double when) {
    if (action.work == Work::kBackward) {
      ended_[key({Work::kBackwardWeights, action.stage, action.micro_batch})] = when;
      ended_[key({Work::kBackwardInput, action.stage, action.micro_batch})] = when;
    } else {
      ended_[key(action)] = when;
    }
  }

  // Does whatever can be done, rank by rank, until nothing can. `run` is told of each action and when what it waits for
  // is there.
  void run_all(double message, const std::function<double(int rank, const Action& action, double ready)>& run) {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t rank = 0; rank < next_.size(); ++rank) {
        while (next_[rank] < schedule_.actions[rank].size()) {
          const Action& action = schedule_.actions[rank][next_[rank]];
          const auto ready = ready_at(action, message);
          if (!ready) break;
          end(action, run(static_cast<int>(rank), action, *ready));
          ++next_[rank];
          moved = true;
        }
      }
    }
  }

  // The first action that nothing lets run; nothing where all did.
  std::optional<Action> stuck(int rank) const {
    const auto& actions = schedule_.actions[static_cast<size_t>(rank)];
    const size_t next = next_[static_cast<size_t>(rank)];
    return next < actions.size() ? std::optional(actions[next]) : std::nullopt;
  }

  std::vector<Action> wanted_by(const Action& action) const {
    const int stage = action.stage, last = schedule_.stages() - 1, micro = action.micro_batch;
    switch (action.work) {
      case Work::kForward:
        if (stage == 0) return {};
        return {{Work::kForward, stage - 1, micro}};
      case Work::kBackwardWeights:
        return {{Work::kBackwardInput, stage, micro}};
      case Work::kBackward:
      case Work::kBackwardInput:
        break;
    }
    std::vector<Action> wanted{{Work::kForward, stage, micro}};
    if (stage < last) wanted.push_back({Work::kBackwardInput, stage + 1, micro});
    return wanted;
  }

 private:
  using Key = std::tuple<Work, int, int>;
  static Key key(const Action& action) { return {action.work, action.stage, action.micro_batch}; }
  int rank_of(int stage) const { return schedule_.rank_of_stage[static_cast<size_t>(stage)]; }

  const Schedule& schedule_;
  std::vector<size_t> next_;  // of each rank's actions
  std::map<Key, double> ended_;
};

std::string what_is_missing(const Schedule& schedule) {
  std::map<std::tuple<Work, int, int>, int> counts;
  for (size_t rank = 0; rank < schedule.actions.size(); ++rank) {
    for (const Action& action : schedule.actions[rank]) {
      if (action.stage < 0 || action.stage >= schedule.stages() || action.micro_batch < 0 ||
          action.micro_batch >= schedule.micro_batches) {
        return fmt::format("rank {} has a {}, which does not exist", rank, describe(action));
      }
      const int home = schedule.rank_of_stage[static_cast<size_t>(action.stage)];
      if (home != static_cast<int>(rank)) {
        return fmt::format("rank {} has a {}, which is on rank {}", rank, describe(action), home);
      }
      ++counts[{action.work, action.stage, action.micro_batch}];
    }
  }
  for (int stage = 0; stage < schedule.stages(); ++stage) {
    for (int micro = 0; micro < schedule.micro_batches; ++micro) {
      const auto count = [&](Work work) { return counts[{work, stage, micro}]; };
      if (count(Work::kForward) != 1) {
        return fmt::format("there are {} of the {}", count(Work::kForward), describe({Work::kForward, stage, micro}));
      }
      const int whole = count(Work::kBackward), input = count(Work::kBackwardInput),
                weights = count(Work::kBackwardWeights);
      if (whole + input != 1 || input != weights) {
        return fmt::format("the {} comes {} times whole, {} times for the input and {} times for the weights",
                           describe({Work::kBackward, stage, micro}), whole, input, weights);
      }
    }
  }
  return "";
}

}  // namespace

std::string why_it_does_not_run(const Schedule& schedule) {
  if (std::string missing = what_is_missing(schedule); !missing.empty()) return missing;
  Progress progress(schedule);
  progress.run_all(0, [](int, const Action&, double) { return 0.0; });
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    const auto stuck = progress.stuck(rank);
    if (!stuck) continue;
    std::string text = fmt::format("rank {} waits for ever before the {}: for", rank, describe(*stuck));
    const char* between = " the ";
    for (const Action& wanted : progress.wanted_by(*stuck)) {
      text += between + describe(wanted);
      between = " and the ";
    }
    return text;
  }
  return "";
}

std::vector<int> kept_activations(const Schedule& schedule) {
  std::vector<int> most;
  for (const auto& actions : schedule.actions) {
    int kept = 0, peak = 0;
    for (const Action& action : actions) {
      if (action.work == Work::kForward) peak = std::max(peak, ++kept);
      if (action.work == Work::kBackward || action.work == Work::kBackwardWeights) --kept;
    }
    most.push_back(peak);
  }
  return most;
}

Timing play(const Schedule& schedule, const StageTimes& times) {
  Timing timing{.length = 0, .busy = std::vector<double>(schedule.actions.size(), 0)};
  std::vector<double> free_at(schedule.actions.size(), 0);
  Progress progress(schedule);
  progress.run_all(times.message, [&](int rank, const Action& action, double ready) {
    double takes = 0;
    if (action.work == Work::kForward) takes = times.forward;
    if (action.work == Work::kBackward) takes = times.backward_input + times.backward_weights;
    if (action.work == Work::kBackwardInput) takes = times.backward_input;
    if (action.work == Work::kBackwardWeights) takes = times.backward_weights;
    double& clock = free_at[static_cast<size_t>(rank)];
    clock = std::max(clock, ready) + takes;
    timing.busy[static_cast<size_t>(rank)] += takes;
    timing.length = std::max(timing.length, clock);
    return clock;
  });
  return timing;
}

double idle_share(const Schedule& schedule) {
  const Timing timing = play(schedule, {});
  double busy = 0;
  for (const double each : timing.busy) busy += each;
  return 1 - busy / (timing.length * schedule.ranks);
}

}  // namespace tessera::pipeline
