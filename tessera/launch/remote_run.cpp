#include "tessera/launch/remote_run.h"

#include <chrono>

#include "tessera/launch/planned_ranks.h"

namespace tessera::launch {
namespace {

constexpr std::chrono::milliseconds kEndTime{30000};  // after a signal

RankPlan plan_of(const std::string& name, const std::vector<std::string>& words, const Environment& environment) {
  return {.command = words, .environment = environment, .inherits_input = true, .inherits_output = true, .name = name};
}

}  // namespace

RunOutcome run_remote(const std::string& name, const RemoteCommand& command) {
  const Supervision supervision{.grace = kEndTime, .ending_time = kEndTime, .signal_fails = true};
  const RunOutcome outcome = run_planned({plan_of(name, command.arguments, command.environment)}, supervision);
  if (outcome.code > 128 && !command.end.empty()) {
    run_planned({plan_of(name, command.end, command.environment)}, supervision);
  }
  return outcome;
}

}  // namespace tessera::launch
