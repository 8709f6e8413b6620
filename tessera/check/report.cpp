#include "tessera/check/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "tessera/base/format.h"

namespace tessera::check {
namespace {

using nlohmann::json;

std::string milliseconds(double seconds) { return fmt::format("{:.3g} ms", seconds * 1e3); }

std::string per_second(double bytes) { return format_bytes(static_cast<uint64_t>(bytes)) + "/s"; }

const HostCard& card_of_rank(const CheckResult& result, int rank) { return result.cards[static_cast<size_t>(rank)]; }

// The first line of a step bears its name.
class Lines {
 public:
  void add(const std::string& step, const std::string& line) {
    text_ += fmt::format("  {:<12} {}\n", step == last_ ? "" : step, line);
    last_ = step;
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
  std::string last_;
};

std::string host_line(const CheckResult& result, const HostCard& first) {
  const auto ranks = std::count_if(result.cards.begin(), result.cards.end(),
                                   [&](const HostCard& card) { return card.identity == first.identity; });
  std::string line =
      fmt::format("{}: {}, Tessera {}, LibTorch {}, {}; {} of memory, {} available; /dev/shm {}, {} free", first.host,
                  count_of(ranks, "rank"), first.version, first.libtorch, first.instructions,
                  format_bytes(first.memory_bytes), format_bytes(first.available_bytes),
                  format_bytes(first.shared_memory_bytes), format_bytes(first.free_shared_memory_bytes));
  if (first.devices > 0) line += "; " + count_of(first.devices, "CUDA device");
  return line;
}

std::string clock_line(const CheckResult& result, const ClockOffset& clock) {
  return fmt::format("{} {} {} {}, ± {}", card_of_rank(result, clock.rank).host, milliseconds(std::abs(clock.seconds)),
                     clock.seconds < 0 ? "behind" : "ahead of", result.cards.front().host,
                     milliseconds(clock.uncertainty));
}

std::string files_line(const CheckResult& result) {
  uint64_t bytes = 0;
  int64_t same = 0;
  for (const CheckedFile& file : result.files) {
    bytes += file.bytes;
    same += file.same ? 1 : 0;
  }
  const auto count = static_cast<int64_t>(result.files.size());
  const bool one_host = first_ranks(result.cards).size() == 1;
  return fmt::format("{}, {}: {}", count_of(count, "file"), format_bytes(bytes),
                     same == count
                         ? (one_host ? "can be read" : "the same on every host")
                         : fmt::format("{} of them {}", count - same, one_host ? "cannot be read" : "differ"));
}

std::string collectives_line(const CheckResult& result) {
  std::vector<std::string> words;
  for (const auto& [name, right] : result.collectives) words.push_back(name + (right ? " right" : " WRONG"));
  return fmt::format("{}", fmt::join(words, ", "));
}

std::string link_line(const CheckResult& result, const LinkSpeed& link) {
  return fmt::format("{} - {}: latency {}, bandwidth {} there, {} back", rank_name(card_of_rank(result, link.from)),
                     rank_name(card_of_rank(result, link.to)), milliseconds(link.latency), per_second(link.there),
                     per_second(link.back));
}

std::string finding_text(const Finding& finding) {
  const bool is_problem = finding.kind == Finding::Kind::kProblem;
  std::string text = fmt::format("{}: {}\n", is_problem ? "error" : "warning", finding.what);
  if (!finding.fix.empty()) text += fmt::format("  fix:   {}\n", finding.fix);
  return text;
}

}  // namespace

bool CheckResult::has_problem() const {
  return std::any_of(findings.begin(), findings.end(),
                     [](const Finding& finding) { return finding.kind == Finding::Kind::kProblem; });
}

std::string report_text(const CheckResult& result) {
  const auto hosts = static_cast<int64_t>(first_ranks(result.cards).size());
  Lines lines;
  for (const int rank : first_ranks(result.cards)) lines.add("hosts", host_line(result, card_of_rank(result, rank)));
  for (const ClockOffset& clock : result.clocks) lines.add("clocks", clock_line(result, clock));
  if (!result.files.empty()) lines.add("files", files_line(result));
  if (!result.collectives.empty()) lines.add("collectives", collectives_line(result));
  for (const LinkSpeed& link : result.links) lines.add("links", link_line(result, link));
  std::string text = fmt::format("checked {} on {}\n{}", count_of(static_cast<int64_t>(result.cards.size()), "rank"),
                                 count_of(hosts, "host"), lines.take());
  for (const Finding& finding : result.findings) text += finding_text(finding);
  if (!result.has_problem()) text += "nothing was found that would stop a run\n";
  return text;
}

json report_json(const CheckResult& result) {
  json hosts = json::array(), clocks = json::array(), files = json::array(), links = json::array();
  for (const int rank : first_ranks(result.cards)) hosts.push_back(json::parse(card_text(card_of_rank(result, rank))));
  for (const ClockOffset& clock : result.clocks) {
    clocks.push_back({{"host", card_of_rank(result, clock.rank).host},
                      {"ahead_s", clock.seconds},
                      {"uncertainty_s", clock.uncertainty}});
  }
  for (const CheckedFile& file : result.files) {
    files.push_back({{"path", file.path}, {"bytes", file.bytes}, {"same", file.same}});
  }
  for (const LinkSpeed& link : result.links) {
    links.push_back({{"from", link.from},
                     {"to", link.to},
                     {"latency_s", link.latency},
                     {"there_bytes_per_s", link.there},
                     {"back_bytes_per_s", link.back}});
  }
  json collectives = json::object(), findings = json::array();
  for (const auto& [name, right] : result.collectives) collectives[name] = right;
  for (const Finding& finding : result.findings) {
    findings.push_back({{"kind", finding.kind == Finding::Kind::kProblem ? "problem" : "warning"},
                        {"step", finding.step},
                        {"what", finding.what},
                        {"fix", finding.fix}});
  }
  return {{"ranks", result.cards.size()}, {"hosts", hosts}, {"clocks", clocks},    {"files", files},
          {"collectives", collectives},   {"links", links}, {"findings", findings}};
}

}  // namespace tessera::check
