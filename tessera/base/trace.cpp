#include "tessera/base/trace.h"

#include <atomic>
#include <mutex>
#include <utility>

namespace tessera {
namespace {

std::atomic<bool> on = false;
std::mutex mutex;
Trace recorded;
size_t most = 0;

}  // namespace

bool tracing() { return on.load(std::memory_order_relaxed); }

void start_tracing(size_t max_events) {
  const std::lock_guard lock(mutex);
  recorded = {};
  most = max_events;
  on = true;
}

void trace(TraceEvent event) {
  if (!tracing()) return;
  const std::lock_guard lock(mutex);
  if (recorded.events.size() < most) {
    recorded.events.push_back(std::move(event));
  } else {
    ++recorded.dropped;
  }
}

Trace stop_tracing() {
  const std::lock_guard lock(mutex);
  on = false;
  return std::exchange(recorded, {});
}

TraceSpan::TraceSpan(TraceLane lane, std::string_view what, std::string_view of) : on_(tracing()) {
  if (!on_) return;
  event_.lane = lane;
  event_.name = what;
  if (!of.empty()) event_.name.append(" ").append(of);
  event_.begin = std::chrono::steady_clock::now();
}

TraceSpan::~TraceSpan() {
  if (!on_) return;
  event_.end = std::chrono::steady_clock::now();
  trace(std::move(event_));
}

}  // namespace tessera
