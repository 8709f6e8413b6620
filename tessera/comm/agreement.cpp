#include "tessera/comm/agreement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "tessera/base/error.h"
#include "tessera/base/hash.h"

namespace tessera::comm {
namespace {

using nlohmann::json;
using Lines = std::vector<std::string>;

Lines lines_of(const std::string& text) {
  Lines lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// The first line of the one that the other does not have.
std::string first_missing(const Lines& of, const Lines& in) {
  const std::set<std::string> there(in.begin(), in.end());
  const auto found = std::find_if(of.begin(), of.end(), [&](const std::string& line) { return !there.contains(line); });
  return found == of.end() ? "" : *found;
}

// "optimizer.params.lr = 0.01; rank 0: optimizer.params.lr = 0.001"
std::string difference(const Lines& own, const Lines& of_rank_0) {
  std::string here = first_missing(own, of_rank_0), there = first_missing(of_rank_0, own);
  if (here.empty() && there.empty()) {  // the same lines, in another order or number
    const auto [mine, its] = std::mismatch(own.begin(), own.end(), of_rank_0.begin(), of_rank_0.end());
    here = mine == own.end() ? "" : *mine;
    there = its == of_rank_0.end() ? "" : *its;
  }
  return fmt::format("{}; rank 0: {}", here.empty() ? "nothing such" : here, there.empty() ? "nothing such" : there);
}

std::string dump(const json& value) {  // bytes that are no UTF-8 are replaced
  return value.dump(-1, ' ', /*ensure_ascii=*/false, json::error_handler_t::replace);
}

json failure_of(const std::function<void()>& work) {
  try {
    work();
    return nullptr;
  } catch (const Error& error) {
    const ErrorReport& report = error.report();
    return {{"kind", error.kind()}, {"what", report.what}, {"where", report.where}, {"fix", report.fix}};
  } catch (const std::exception& error) {
    return {{"kind", ErrorKind::kMachine}, {"what", error.what()}, {"where", ""}, {"fix", ""}};
  }
}

}  // namespace

void all_or_none(Group& group, const std::string& label, const std::function<void()>& work) {
  const json own = failure_of(work);
  for (const std::string& text : group.exchange_texts(dump(own), label)) {
    const json failure = json::parse(text);
    if (failure.is_null()) continue;
    throw Error(failure.at("kind").get<ErrorKind>(), {failure.at("what"), failure.at("where"), failure.at("fix")});
  }
}

void require_agreement(Group& group, const std::vector<SharedFacts>& facts, const std::string& where) {
  if (group.size() == 1) return;
  Lines own;
  for (const SharedFacts& each : facts) own.push_back(each.text);
  const std::string hash = fmt::format("{:016x}", fnv1a(fmt::format("{}", fmt::join(own, "\x1f"))));
  const Lines hashes = group.exchange_texts(hash, "what the ranks share");
  const auto other = std::find_if(hashes.begin(), hashes.end(), [&](const auto& each) { return each != hashes[0]; });
  if (other == hashes.end()) return;
  const Lines all = group.exchange_texts(dump(own), "where the ranks differ");
  const auto rank = static_cast<size_t>(other - hashes.begin());
  const auto its = json::parse(all[rank]).get<Lines>(), of_rank_0 = json::parse(all[0]).get<Lines>();
  for (size_t i = 0; i < facts.size(); ++i) {
    if (its[i] == of_rank_0[i]) continue;
    throw Error(ErrorKind::kUsage, {fmt::format("rank {} has another {} than rank 0: {}", rank, facts[i].subject,
                                                difference(lines_of(its[i]), lines_of(of_rank_0[i]))),
                                    where, facts[i].fix});
  }
  TESSERA_INVARIANT(!"texts of different hashes differ");
}

}  // namespace tessera::comm
