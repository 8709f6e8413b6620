#include "tessera/comm/hang_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>

#include "tessera/base/format.h"

namespace tessera::comm {
namespace {

using nlohmann::json;
using Seconds = std::chrono::duration<double>;

constexpr size_t kMostRows = 200;
constexpr size_t kMostStacks = 16;  // different ones
constexpr size_t kMostInWords = 4;  // different waits of a sentence
constexpr size_t kMostPlaced = 4;   // ranks that are named with their places

json json_of_wait(const RankState::Wait& wait) {
  return {{"operation", wait.awaited.operation},
          {"group", wait.awaited.group},
          {"channel", wait.awaited.channel},
          {"number", wait.awaited.number},
          {"lasted", wait.lasted.count()}};
}

RankState::Wait wait_of(const json& wait) {
  return {.awaited = {.operation = wait.at("operation"),
                      .group = wait.at("group"),
                      .channel = wait.at("channel"),
                      .number = wait.at("number")},
          .lasted = Seconds(wait.at("lasted").get<double>())};
}

// Ranks with the same text, in the order of the first of each.
struct Alike {
  std::string text;
  std::vector<int> ranks;
};

std::vector<Alike> alike(const std::vector<const RankState*>& states,
                         const std::function<std::string(const RankState&)>& text_of) {
  std::vector<Alike> groups;
  for (const RankState* const state : states) {
    const std::string text = text_of(*state);
    const auto found = std::find_if(groups.begin(), groups.end(), [&](const Alike& each) { return each.text == text; });
    Alike& group = found == groups.end() ? groups.emplace_back(Alike{text, {}}) : *found;
    group.ranks.push_back(state->rank);
  }
  return groups;
}

std::vector<const RankState*> those(const std::vector<RankState>& states,
                                    const std::function<bool(const RankState&)>& belongs) {
  std::vector<const RankState*> found;
  for (const RankState& state : states) {
    if (belongs(state)) found.push_back(&state);
  }
  return found;
}

std::vector<int> ranks_of(const std::vector<const RankState*>& states) {
  std::vector<int> ranks;
  for (const RankState* const state : states) ranks.push_back(state->rank);
  return ranks;
}

// "all-gather of 'layers.3' (number 1277) in group tp"
std::string in_words(const Awaited& awaited) {
  return awaited.operation + (awaited.number < 0 ? "" : fmt::format(" (number {})", awaited.number)) +
         (awaited.group.empty() ? "" : fmt::format(" in group {}", awaited.group));
}

std::string activity_of(const RankState& state) {
  return state.activity.empty() ? "elsewhere in the program" : fmt::format("at '{}'", state.activity);
}

const char* is_or_are(const std::vector<int>& ranks) { return ranks.size() == 1 ? "is" : "are"; }

using Places = std::vector<std::string>;

Places places_of(const std::vector<RankState>& states) {
  Places places;
  for (const RankState& state : states) places.push_back(state.place);
  return places;
}

// "0 to 2, 5"; "1 (tp 1), 3 (tp 3)" where they have places and are few.
std::string numbers_in_words(const std::vector<int>& ranks, const Places& places) {
  const auto has_place = [&](int rank) { return !places.empty() && !places[static_cast<size_t>(rank)].empty(); };
  const bool placed = ranks.size() <= kMostPlaced && std::all_of(ranks.begin(), ranks.end(), has_place);
  std::vector<std::string> parts;
  for (size_t begin = 0; begin < ranks.size();) {
    size_t end = begin + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (placed || end - begin < 3) {
      parts.push_back(std::to_string(ranks[begin]));
      if (placed) parts.back() += fmt::format(" ({})", places[static_cast<size_t>(ranks[begin])]);
      ++begin;
      continue;
    }
    parts.push_back(fmt::format("{} to {}", ranks[begin], ranks[end - 1]));
    begin = end;
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

// "rank 1 is not waiting in a collective: at 'next batches'; the others wait for that"
std::string sentence_about_absent(const std::vector<const RankState*>& absent, bool somebody_waits,
                                  const Places& places) {
  std::vector<std::string> parts;
  for (const auto& [text, ranks] : alike(absent, activity_of)) {
    if (parts.size() == kMostInWords) break;
    parts.push_back(
        fmt::format("{} {} not waiting in a collective: {}", ranks_in_words(ranks, places), is_or_are(ranks), text));
  }
  return fmt::format("{}{}", fmt::join(parts, "; "), somebody_waits ? "; the others wait for that" : "");
}

// Everybody waits.
std::string sentence_about_waiting(const std::vector<const RankState*>& waiting, const Places& places) {
  const auto first_of = [](const RankState& state) { return in_words(state.waits.front().awaited); };
  const auto groups = alike(waiting, first_of);
  if (groups.size() == 1) {
    return fmt::format("every rank waits in the {}: what they sent each other does not arrive, so look at the network",
                       groups.front().text);
  }
  std::vector<std::string> parts;
  for (const auto& [text, ranks] : groups) {
    if (parts.size() == kMostInWords) {
      parts.push_back("others elsewhere");
      break;
    }
    parts.push_back(fmt::format("{} {} waiting in the {}", ranks_in_words(ranks, places), is_or_are(ranks), text));
  }
  const Awaited& one = waiting.front()->waits.front().awaited;
  const bool one_channel = std::all_of(waiting.begin(), waiting.end(), [&](const RankState* state) {
    const Awaited& other = state->waits.front().awaited;
    return other.channel == one.channel && other.number >= 0;
  });
  const auto number_of = [](const RankState* state) { return state->waits.front().awaited.number; };
  const auto [least, most] = std::minmax_element(
      waiting.begin(), waiting.end(), [&](const auto* a, const auto* b) { return number_of(a) < number_of(b); });
  std::string verdict = "ranks wait for each other in different places";
  if (one_channel && number_of(*least) == number_of(*most)) verdict = "ranks called different collectives";
  if (one_channel && number_of(*least) < number_of(*most)) {
    std::vector<int> behind;
    for (const RankState* const state : waiting) {
      if (number_of(state) == number_of(*least)) behind.push_back(state->rank);
    }
    verdict = fmt::format("{} {} behind", ranks_in_words(behind, places), is_or_are(behind));
  }
  return fmt::format("{}: {}", verdict, fmt::join(parts, "; "));
}

using Row = std::vector<std::string>;

const Row kTitles = {"rank", "host", "waits for", "number", "group", "for"};

std::vector<Row> rows_of(const RankState& state) {
  if (!state.answers) return {{"", "?", "no answer: stopped, too busy, or gone", "", "", ""}};
  std::vector<Row> rows;
  for (const RankState::Wait& wait : state.waits) {
    const int64_t number = wait.awaited.number;
    rows.push_back({"", state.host, wait.awaited.operation, number < 0 ? "" : std::to_string(number),
                    wait.awaited.group.empty() ? "world" : wait.awaited.group, format_duration(wait.lasted)});
  }
  if (!rows.empty()) return rows;
  std::string words = fmt::format("nothing: {}", activity_of(state));
  if (!state.activity.empty()) words += fmt::format(" for {}", format_duration(state.busy));
  if (state.last) {
    words += fmt::format("; last the {}, {} ago", in_words(state.last->awaited), format_duration(state.last->lasted));
  }
  return {{"", state.host, words, "", "", ""}};
}

// What makes two ranks share a row: all but how long.
std::string key_of(const RankState& state) {
  std::vector<std::string> cells;
  for (const Row& row : rows_of(state)) {
    cells.insert(cells.end(), row.begin(), row.end() - 1);
    if (state.waits.empty() && state.answers) cells.push_back(std::to_string(state.rank));
  }
  return fmt::format("{}", fmt::join(cells, "\x1f"));
}

std::string table_of(const std::vector<RankState>& states) {
  std::vector<Row> rows = {kTitles};
  const Places places = places_of(states);
  const auto groups = alike(those(states, [](const RankState&) { return true; }), key_of);
  for (const auto& [key, ranks] : groups) {
    if (rows.size() > kMostRows) break;
    const std::vector<Row> own = rows_of(states[static_cast<size_t>(ranks.front())]);
    for (size_t i = 0; i < own.size(); ++i) {
      rows.push_back(own[i]);
      rows.back()[0] = i == 0 ? numbers_in_words(ranks, places) : "";
    }
  }
  std::vector<size_t> widths(kTitles.size(), 0);
  for (const Row& row : rows) {
    const bool is_one_cell = row[3].empty() && row[4].empty();  // "nothing: …" may be as long as it likes
    for (size_t i = 0; i < row.size(); ++i) {
      if (!(is_one_cell && i == 2)) widths[i] = std::max(widths[i], row[i].size());
    }
  }
  std::string text;
  for (const Row& row : rows) {
    std::string line = " ";
    for (size_t i = 0; i < row.size(); ++i) line += fmt::format(" {:<{}} ", row[i], widths[i]);
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  if (rows.size() > kMostRows) text += "  … and other ranks\n";
  return text;
}

std::string stack_of(const RankState& state) {
  std::string text;
  for (const std::string& frame : state.frames) text += fmt::format("      {}\n", frame);
  if (state.frames.empty()) text += "      its main thread did not say\n";
  if (!state.script.empty()) {
    text += "      its program:\n";
    size_t begin = 0;
    while (begin < state.script.size()) {
      const size_t end = std::min(state.script.find('\n', begin), state.script.size());
      text += fmt::format("      {}\n", state.script.substr(begin, end - begin));
      begin = end + 1;
    }
  }
  return text;
}

}  // namespace

json json_of(const RankState& state) {
  json waits = json::array();
  for (const RankState::Wait& wait : state.waits) waits.push_back(json_of_wait(wait));
  return {{"rank", state.rank},
          {"host", state.host},
          {"process", state.process},
          {"waits", waits},
          {"last", state.last ? json_of_wait(*state.last) : json()},
          {"activity", state.activity},
          {"busy", state.busy.count()},
          {"frames", state.frames},
          {"script", state.script}};
}

RankState rank_state_of(const json& json) {
  RankState state{.rank = json.at("rank"),
                  .host = json.at("host"),
                  .process = json.at("process"),
                  .activity = json.at("activity"),
                  .busy = Seconds(json.at("busy").get<double>()),
                  .frames = json.at("frames"),
                  .script = json.at("script")};
  for (const auto& wait : json.at("waits")) state.waits.push_back(wait_of(wait));
  if (!json.at("last").is_null()) state.last = wait_of(json.at("last"));
  return state;
}

std::string ranks_in_words(const std::vector<int>& ranks, const std::vector<std::string>& places) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", numbers_in_words(ranks, places));
}

std::string hang_conclusion(const std::vector<RankState>& states) {
  const auto silent = those(states, [](const RankState& state) { return !state.answers; });
  const auto absent = those(states, [](const RankState& state) { return state.answers && state.waits.empty(); });
  const auto waiting = those(states, [](const RankState& state) { return state.answers && !state.waits.empty(); });
  const Places places = places_of(states);
  std::vector<std::string> sentences;
  if (!silent.empty()) {
    sentences.push_back(fmt::format("{} {} not answer: stopped, too busy, or gone",
                                    ranks_in_words(ranks_of(silent), places), silent.size() == 1 ? "does" : "do"));
  }
  if (!absent.empty()) sentences.push_back(sentence_about_absent(absent, !waiting.empty(), places));
  if (sentences.empty()) sentences.push_back(sentence_about_waiting(waiting, places));
  return fmt::format("{}", fmt::join(sentences, "; "));
}

std::string hang_report(const std::vector<RankState>& states) {
  std::string text = table_of(states);
  text += fmt::format("  so: {}\n", hang_conclusion(states));
  const auto answers = those(states, [](const RankState& state) { return state.answers; });
  const auto stacks = alike(answers, stack_of);
  const Places places = places_of(states);
  text += "  where their main threads are, innermost first:\n";
  for (size_t i = 0; i < std::min(stacks.size(), kMostStacks); ++i) {
    const RankState& first = states[static_cast<size_t>(stacks[i].ranks.front())];
    text += fmt::format("    {}{}\n{}", ranks_in_words(stacks[i].ranks, places),
                        stacks[i].ranks.size() > 1 ? "" : fmt::format(", process {}", first.process), stacks[i].text);
  }
  if (stacks.size() > kMostStacks) text += "    … and others\n";
  text.pop_back();
  return text;
}

}  // namespace tessera::comm
