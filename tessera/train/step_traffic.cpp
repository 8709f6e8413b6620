#include "tessera/train/step_traffic.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace tessera::train {

using std::chrono::duration;
using std::chrono::steady_clock;

void StepTraffic::begin() {
  before_ = world_->uses();
  begun_ = steady_clock::now();
}

void StepTraffic::end() {
  seconds_ += duration<double>(steady_clock::now() - begun_).count();
  ++steps_;
  for (const comm::GroupUse& use : world_->uses()) {
    Sum& sum = sums_[use.name];
    sum.bytes_sent += use.bytes_sent;
    sum.waited += use.waited;
  }
  for (const comm::GroupUse& use : before_) {
    Sum& sum = sums_[use.name];
    sum.bytes_sent -= use.bytes_sent;
    sum.waited -= use.waited;
  }
}

std::vector<GroupTraffic> StepTraffic::of_all_ranks() const {
  nlohmann::json own = nlohmann::json::object();
  for (const auto& [name, sum] : sums_) {
    if (sum.bytes_sent == 0) continue;
    own[name] = {static_cast<double>(sum.bytes_sent) / static_cast<double>(steps_), sum.waited / seconds_};
  }
  std::map<std::string, GroupTraffic> found;
  for (const std::string& text : world_->exchange_texts(own.dump(), "the traffic of the steps")) {
    const nlohmann::json of_rank = nlohmann::json::parse(text);
    for (const auto& [name, values] : of_rank.items()) {
      const double sent = values[0], waited = values[1];
      const auto [place, is_new] = found.try_emplace(name, GroupTraffic{name, sent, sent, waited, waited});
      if (is_new) continue;
      GroupTraffic& of = place->second;
      of = {name, std::min(of.least_sent, sent), std::max(of.most_sent, sent), std::min(of.least_waited, waited),
            std::max(of.most_waited, waited)};
    }
  }
  std::vector<GroupTraffic> rows;
  for (auto& [name, row] : found) rows.push_back(std::move(row));
  return rows;
}

}  // namespace tessera::train
