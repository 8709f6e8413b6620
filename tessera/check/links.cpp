#include "tessera/check/links.h"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "tessera/base/format.h"

namespace tessera::check {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kLinkLabel = "link";
constexpr int kLatencyTrips = 20;
constexpr int64_t kLeastBytes = 256 << 10;
constexpr int64_t kMostBytes = 32 << 20;
constexpr double kMessageTakes = 0.2;  // seconds, by what a message of kLeastBytes took
constexpr int kMessages = 3;           // of which the fastest counts

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

void send(comm::Group& world, const at::Tensor& buffer, int to) { world.start_send(buffer, to, kLinkLabel).finish(); }

void receive(comm::Group& world, const at::Tensor& buffer, int from) {
  world.start_receive(buffer, from, kLinkLabel).finish();
}

at::Tensor one_number(int64_t value) { return at::zeros({1}, at::kLong).fill_(value); }

int64_t receive_number(comm::Group& world, int from) {
  at::Tensor number = at::zeros({1}, at::kLong);
  receive(world, number, from);
  return number.item<int64_t>();
}

// Sends so many bytes and waits for a word; seconds.
double round_trip(comm::Group& world, int peer, int64_t bytes) {
  const at::Tensor buffer = at::zeros({bytes}, at::kByte);
  const auto begin = Clock::now();
  send(world, buffer, peer);
  receive_number(world, peer);
  return seconds_since(begin);
}

void echo(comm::Group& world, int peer, int64_t bytes, int times) {
  const at::Tensor buffer = at::zeros({bytes}, at::kByte);
  for (int i = 0; i < times; ++i) {
    receive(world, buffer, peer);
    send(world, one_number(i), peer);
  }
}

struct OneWay {
  double latency = 0;
  double bandwidth = 0;
};

// The other rank runs answer_one_way() meanwhile.
OneWay measure_one_way(comm::Group& world, int peer) {
  double shortest = round_trip(world, peer, 1);
  for (int i = 1; i < kLatencyTrips; ++i) shortest = std::min(shortest, round_trip(world, peer, 1));
  const double first = round_trip(world, peer, kLeastBytes);
  const auto guess = static_cast<int64_t>(static_cast<double>(kLeastBytes) * kMessageTakes / std::max(first, 1e-6));
  const int64_t bytes = std::clamp(guess, kLeastBytes, kMostBytes);
  send(world, one_number(bytes), peer);
  double fastest = round_trip(world, peer, bytes);
  for (int i = 1; i < kMessages; ++i) fastest = std::min(fastest, round_trip(world, peer, bytes));
  const double moving = std::max(fastest - shortest / 2, 1e-9);  // the word's way back carries nothing
  return {.latency = shortest / 2, .bandwidth = static_cast<double>(bytes) / moving};
}

void answer_one_way(comm::Group& world, int peer) {
  echo(world, peer, 1, kLatencyTrips);
  echo(world, peer, kLeastBytes, 1);
  echo(world, peer, receive_number(world, peer), kMessages);
}

std::string name_of(const LinkSpeed& link, const std::vector<HostCard>& cards) {
  return fmt::format("{} and {}", rank_name(cards[static_cast<size_t>(link.from)]),
                     rank_name(cards[static_cast<size_t>(link.to)]));
}

}  // namespace

std::vector<std::pair<int, int>> pairs_to_measure(const std::vector<HostCard>& cards) {
  std::vector<int> ranks = first_ranks(cards);
  if (ranks.size() == 1) {
    ranks.clear();
    for (const HostCard& card : cards) ranks.push_back(card.rank);
  }
  std::vector<std::pair<int, int>> pairs;
  for (size_t i = 0; i < ranks.size() && ranks.size() <= kAllPairs; ++i) {
    for (size_t j = i + 1; j < ranks.size(); ++j) pairs.emplace_back(ranks[i], ranks[j]);
  }
  for (size_t i = 0; i < ranks.size() && ranks.size() > kAllPairs; ++i) {
    pairs.emplace_back(ranks[i], ranks[(i + 1) % ranks.size()]);
  }
  return pairs;
}

Findings judge_links(const std::vector<LinkSpeed>& links, const std::vector<HostCard>& cards) {
  double best = 0;
  for (const LinkSpeed& link : links) best = std::max(best, link.slower());
  Findings found;
  for (const LinkSpeed& link : links) {
    if (link.slower() >= best / 2) continue;
    found.push_back(
        {Finding::Kind::kWarning, "links",
         fmt::format("{} exchange {}/s, less than half of the {}/s of the fastest pair", name_of(link, cards),
                     format_bytes(static_cast<uint64_t>(link.slower())), format_bytes(static_cast<uint64_t>(best))),
         "a run is as fast as its slowest link: look at the cable, the switch's port and what else uses "
         "them, or leave the host out (--exclude)"});
  }
  return found;
}

std::vector<LinkSpeed> measure_links(comm::Group& world, const std::vector<HostCard>& cards) {
  nlohmann::json own = nlohmann::json::array();
  const auto pairs = pairs_to_measure(cards);
  for (const auto& [from, to] : pairs) {
    if (world.rank() == from) {
      const OneWay there = measure_one_way(world, to);
      answer_one_way(world, to);
      own.push_back({there.latency, there.bandwidth});
    } else if (world.rank() == to) {
      answer_one_way(world, from);
      const OneWay back = measure_one_way(world, from);
      own.push_back({back.latency, back.bandwidth});
    }
    world.barrier(kLinkLabel);  // the others wait for one pair at most
  }
  const std::vector<std::string> texts = world.exchange_texts(own.dump(), "speeds of links");
  if (world.rank() != 0) return {};
  std::vector<nlohmann::json> told;
  for (const std::string& text : texts) told.push_back(nlohmann::json::parse(text));
  std::vector<size_t> read(told.size(), 0);
  const auto next_of = [&](int rank) { return told[static_cast<size_t>(rank)].at(read[static_cast<size_t>(rank)]++); };
  std::vector<LinkSpeed> links;
  for (const auto& [from, to] : pairs) {
    const nlohmann::json there = next_of(from), back = next_of(to);
    links.push_back({.from = from,
                     .to = to,
                     .latency = std::min(there.at(0).get<double>(), back.at(0).get<double>()),
                     .there = there.at(1),
                     .back = back.at(1)});
  }
  return links;
}

}  // namespace tessera::check
