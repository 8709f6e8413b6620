// What this process does, and when: the events of a timeline (tessera train --trace). Nothing is recorded, and an event
// costs one atomic load, until start_tracing(). Any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

enum class TraceLane {
  kCompute,  // what the thread that trains does
  kGather,   // the rest: what goes on beside it, from its start until it was taken
  kReduce,
  kExchange,
  kOptimizer,
  kIo,
  kToHost,    // copies between a device and the host's memory
  kToDevice,  // …
};

struct TraceEvent {
  TraceLane lane;
  std::string name;
  std::chrono::steady_clock::time_point begin, end;
  int64_t bytes = 0;  // that move; 0: none
};

bool tracing();

// `max_events`: later ones are counted but not kept.
void start_tracing(size_t max_events = 1'000'000);

void trace(TraceEvent event);

struct Trace {
  std::vector<TraceEvent> events;  // in the order of their ends
  size_t dropped = 0;
};

// What was recorded; ends the tracing.
Trace stop_tracing();

// An event from here to the end of the scope: "<what> <of>".
class TraceSpan {
 public:
  TraceSpan(TraceLane lane, std::string_view what, std::string_view of = {});
  ~TraceSpan();
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  bool on_;
  TraceEvent event_;
};

}  // namespace tessera
