#include "tessera/comm/collective_log.h"

#include <fmt/format.h>

#include <atomic>
#include <map>
#include <mutex>
#include <utility>

#include "tessera/base/format.h"

namespace tessera::comm {
namespace {

constexpr size_t kMostCosts = 1'000'000;

std::atomic<bool> on = false;
std::mutex costs_mutex;
std::vector<CollectiveCost> recorded;

}  // namespace

void start_collective_log() { on = true; }

bool logs_collectives() { return on.load(std::memory_order_relaxed); }

void log_collective(const CollectiveCost& cost) {
  const std::lock_guard lock(costs_mutex);
  if (recorded.size() < kMostCosts) recorded.push_back(cost);
}

std::vector<CollectiveCost> take_collective_log() {
  const std::lock_guard lock(costs_mutex);
  return std::exchange(recorded, {});
}

std::string table_of(const std::vector<CollectiveCost>& costs) {
  struct Sum {
    int64_t count = 0;
    double milliseconds = 0;
  };
  std::map<std::pair<std::string, int64_t>, Sum> sums;
  for (const CollectiveCost& cost : costs) {
    Sum& sum = sums[{cost.operation, cost.bytes}];
    ++sum.count;
    sum.milliseconds += std::chrono::duration<double, std::milli>(cost.time).count();
  }
  constexpr const char* kRow = "{:<26}{:>14}{:>10}{:>16}{:>14}\n";
  std::string text = fmt::format(kRow, "collective", "message", "count", "total (ms)", "mean (ms)");
  for (const auto& [key, sum] : sums) {
    text += fmt::format(kRow, key.first, format_bytes(static_cast<uint64_t>(key.second)), sum.count,
                        fmt::format("{:.2f}", sum.milliseconds),
                        fmt::format("{:.2f}", sum.milliseconds / static_cast<double>(sum.count)));
  }
  text.pop_back();
  return text;
}

}  // namespace tessera::comm
