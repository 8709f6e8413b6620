#include "tessera/launch/failure_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "tessera/base/format.h"

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

std::string name_of(const RankFailure& failure) {
  return failure.name.empty() ? fmt::format("rank {}", failure.rank) : failure.name;
}

// ssh's own code; that of the program is passed on as it is.
bool connection_failed(const RankFailure& failure) {
  constexpr int kConnectionCode = 255;
  return failure.elsewhere && failure.exit.signal == 0 && failure.exit.code == kConnectionCode;
}

}  // namespace

std::string failure_name(const RankFailure& failure) {
  return failure.exit.signal != 0 ? fmt::format("{} ({})", name_of(failure), signal_name(failure.exit.signal))
                                  : fmt::format("{} (code {})", name_of(failure), failure.exit.code);
}

std::string failure_sentence(const RankFailure& failure) {
  std::string sentence = fmt::format(
      "{} {}", name_of(failure),
      connection_failed(failure) ? "could not be reached, or its connection was lost" : exit_words(failure.exit));
  if (probably_out_of_memory(failure.exit)) {
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
  if (!others.empty()) report += fmt::format("  others: {}\n", others);
  if (connection_failed(failure)) {
    report += fmt::format("  fix:   'ssh {} true' must work here without a question\n", failure.name);
  }
  if (probably_out_of_memory(failure.exit)) {
    if (failure.out_of_memory_kills > 0) {
      report += fmt::format("  the kernel has killed {} on this machine for lack of memory since the run started\n",
                            count_of(static_cast<int64_t>(failure.out_of_memory_kills), "process", "processes"));
    }
    report += "  fix:   use a smaller micro batch or fewer ranks on this host, or add memory\n";
  }
  return report;
}

}  // namespace tessera::launch
