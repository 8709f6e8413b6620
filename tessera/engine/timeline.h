// What the ranks of a run did when, as a file in Chrome's trace format: open it in chrome://tracing or ui.perfetto.dev.
//
//   start_tracing();                                     // base/trace.h
//   … train …
//   engine::write_timeline(*world, "timeline.json");     // what Engine's start_timeline and write_timeline do
//
// A process a rank, and in it a thread for each lane; where events of a lane overlap without one lying in the other, as
// two collectives in flight may, the lane has several. Times count from the first event of any rank; between hosts they
// are as far apart as the hosts' clocks.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tessera/base/trace.h"
#include "tessera/comm/group.h"

namespace tessera::engine {

// ErrorKind::kUsage where no file can be written there, to be told before the run and not after it.
void check_timeline_path(const std::filesystem::path& path);

// Ends the tracing. Collective: rank 0 writes what every rank has recorded. ErrorKind::kMachine where that fails.
void write_timeline(comm::Group& world, const std::filesystem::path& path);

// The elements of "traceEvents" of one rank, times in microseconds since `zero`.
nlohmann::json timeline_events(const std::vector<TraceEvent>& events, int rank,
                               std::chrono::steady_clock::time_point zero);

}  // namespace tessera::engine
