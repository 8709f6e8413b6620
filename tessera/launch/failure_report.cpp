#include "tessera/launch/failure_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "tessera/base/format.h"
#include "tessera/launch/missing_part.h"

namespace tessera::launch {
namespace {

std::string memory_words(const RankFailure& failure) {
  if (failure.memory.resident_bytes == 0) return "";  // it ended before it was looked at
  std::string words = fmt::format("resident {}", format_bytes(failure.memory.resident_bytes));
  if (failure.memory.peak_resident_bytes > failure.memory.resident_bytes) {
    words += fmt::format(" (peak {})", format_bytes(failure.memory.peak_resident_bytes));
  }
  if (failure.memory_limit_bytes > 0) words += fmt::format(" of {}", format_bytes(failure.memory_limit_bytes));
  return words;
}

// On one line, of bounded length: a script given with -c would fill the report.
std::string command_words(const std::vector<std::string>& command) {
  constexpr size_t kMost = 200;
  std::string words = fmt::format("{}", fmt::join(command, " "));
  std::replace(words.begin(), words.end(), '\n', ' ');
  return words.size() <= kMost ? words : words.substr(0, kMost) + "...";
}

// A peer that misses them can only say that their processes are gone.
std::string words_of_ended(const std::vector<int>& ranks) {
  constexpr size_t kMost = 8;
  if (ranks.size() > kMost) return fmt::format("{} ranks had ended well, with code 0", ranks.size());
  return fmt::format("{} {} had ended well, with code 0", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

std::string name_of(const RankFailure& failure) {
  if (failure.rank_there >= 0) return fmt::format("rank {} on {}", failure.rank_there, failure.name);
  return failure.name.empty() ? fmt::format("rank {}", failure.rank) : failure.name;
}

bool is_silent(const RankFailure& failure) { return failure.silent_for.count() > 0; }

// ssh's own code; that of the program is passed on as it is.
bool connection_failed(const RankFailure& failure) {
  constexpr int kConnectionCode = 255;
  return failure.elsewhere && failure.rank_there < 0 && failure.exit.signal == 0 &&
         failure.exit.code == kConnectionCode;
}

std::string words_of_lost_host(const RankFailure& failure) {
  if (is_silent(failure)) {
    const std::string time = fmt::format("{} s", failure.silent_for.count());
    return failure.was_heard ? fmt::format("host {} has not been heard of for {}", failure.name, time)
                             : fmt::format("host {} has not started its launcher within {}", failure.name, time);
  }
  return failure.name + (failure.was_heard
                             ? " lost its connection: its launcher or its ssh was killed, or the host went down"
                             : " could not be reached, or its connection was lost");
}

std::string fix_of_lost_host(const RankFailure& failure) {
  if (!failure.was_heard) return fmt::format("'ssh {} true' must work here without a question", failure.name);
  if (failure.all_are_silent) return "no other host is heard of either: look at the network of this one first";
  if (!is_silent(failure)) return fmt::format("look at {}: whether it runs, and what was killed there", failure.name);
  return fmt::format(
      "look at the network and the power of {}, and whether it is frozen; TESSERA_TIMEOUT says how many seconds it may "
      "be silent",
      failure.name);
}

// Of four kinds, the higher the less a consequence of the others.
int gravity(const RankFailure& failure) {
  if (is_lost_host(failure)) return 3;
  if (failure.exit.signal == 0) return failure.exit.code == 1 ? 1 : 2;
  const RankExit exits[] = {{.code = 1}, failure.exit};
  return index_to_blame(exits) == 1 ? 4 : 1;
}

}  // namespace

std::string failure_name(const RankFailure& failure) {
  if (is_silent(failure)) return failure.name + " (silent)";
  return failure.exit.signal != 0 ? fmt::format("{} ({})", name_of(failure), signal_name(failure.exit.signal))
                                  : fmt::format("{} (code {})", name_of(failure), failure.exit.code);
}

bool is_lost_host(const RankFailure& failure) { return is_silent(failure) || connection_failed(failure); }

bool goes_before(const RankFailure& one, const RankFailure& other) { return gravity(one) > gravity(other); }

std::string failure_sentence(const RankFailure& failure) {
  std::string sentence = is_lost_host(failure) ? words_of_lost_host(failure)
                                               : fmt::format("{} {}", name_of(failure),
                                                             exit_words(failure.exit, failure.out_of_memory_kills > 0));
  if (was_killed_outright(failure.exit)) {
    const std::string memory = memory_words(failure);
    if (!memory.empty()) sentence += ": " + memory;
  }
  return sentence + fmt::format(", {} after start", format_duration(failure.after_start));
}

std::string failure_report(const RankFailure& failure, const std::string& others) {
  std::string report = fmt::format("error: {}\n", failure_sentence(failure));
  report += fmt::format("  where: process {}: {}\n", failure.pid, command_words(failure.command));
  if (!failure.log_file.empty()) {
    report += fmt::format("  its output is in {}\n", failure.log_file);
  } else if (failure.output_not_seen && failure.last_lines.empty()) {
    report += "  its last lines are above\n";
  } else if (failure.last_lines.empty()) {
    report += "  it wrote no output\n";
  } else {
    report += fmt::format("  its last {}:\n", failure.last_lines.size() == 1 ? "line" : "lines");
    for (const std::string& line : failure.last_lines) report += fmt::format("    {}\n", line);
  }
  if (!failure.ended_before.empty()) report += fmt::format("  before: {}\n", words_of_ended(failure.ended_before));
  if (!others.empty()) report += fmt::format("  others: {}\n", others);
  if (is_lost_host(failure)) report += fmt::format("  fix:   {}\n", fix_of_lost_host(failure));
  const auto missing = missing_part(failure.last_lines);
  if (missing && failure.exit.signal == 0) {
    report += fmt::format("  so:    {}\n  fix:   {}\n", missing->what, missing->fix);
  }
  if (was_killed_outright(failure.exit) && failure.out_of_memory_kills > 0) {
    report += fmt::format("  the kernel has killed {} on this machine for lack of memory since the run started\n",
                          count_of(static_cast<int64_t>(failure.out_of_memory_kills), "process", "processes"));
  }
  const std::string fix = fix_of_signal(failure.exit);
  if (!fix.empty() && !is_lost_host(failure)) report += fmt::format("  fix:   {}\n", fix);
  return report;
}

}  // namespace tessera::launch
