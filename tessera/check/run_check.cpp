#include "tessera/check/run_check.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "tessera/check/report.h"
#include "tessera/train/rank_run.h"

namespace tessera::check {
namespace {

constexpr int kFoundProblem = 1;

std::vector<HostCard> exchange_cards(comm::Group& world) {
  std::vector<HostCard> cards;
  for (const std::string& text : world.exchange_texts(card_text(own_card(world.rank())), "what each host is")) {
    cards.push_back(card_of(text));
  }
  return cards;
}

void add(Findings& findings, const Findings& more) { findings.insert(findings.end(), more.begin(), more.end()); }

// Rank 0's result is whole.
CheckResult run_check(comm::Group& world, const std::vector<std::string>& paths) {
  CheckResult result{.cards = exchange_cards(world)};
  add(result.findings, compare_cards(result.cards));
  result.clocks = compare_clocks(world, result.cards);
  add(result.findings, judge_clocks(result.clocks, result.cards));
  result.files = compare_files(world, result.cards, paths, result.findings);
  if (world.size() == 1) return result;  // there is nobody to exchange with
  result.collectives = check_collectives(world, result.cards, result.findings);
  result.links = measure_links(world, result.cards);
  add(result.findings, judge_links(result.links, result.cards));
  return result;
}

}  // namespace

int check_as_rank(const std::vector<std::string>& paths, bool prints_json) {
  int code = 0;
  const int failed = train::run_as_rank([&](const std::shared_ptr<comm::Group>& world) {
    const CheckResult result = run_check(*world, paths);
    if (world->rank() != 0) return;
    const std::string text = prints_json ? report_json(result).dump(2) + "\n" : report_text(result);
    std::fputs(text.c_str(), stdout);
    if (result.has_problem()) code = kFoundProblem;
  });
  return failed != 0 ? failed : code;
}

}  // namespace tessera::check
