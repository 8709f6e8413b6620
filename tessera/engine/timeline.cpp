#include "tessera/engine/timeline.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <limits>
#include <map>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/log.h"

namespace tessera::engine {
namespace {

using nlohmann::json;
using std::chrono::steady_clock;

constexpr std::array kLaneNames{"compute",   "gather", "reduce",         "exchange",
                                "optimizer", "I/O",    "device to host", "host to device"};
constexpr int kRowsOfLane = 1000;  // thread numbers

double microseconds(steady_clock::duration time) { return std::chrono::duration<double, std::micro>(time).count(); }

// The events of a lane dealt out to rows, in each of which any two lie apart or one in the other.
class Rows {
 public:
  // By ascending begin; of those that begin together the longest first.
  size_t row_of(const TraceEvent& event) {
    for (size_t row = 0; row < open_.size(); ++row) {
      auto& ends = open_[row];
      while (!ends.empty() && ends.back() <= event.begin) ends.pop_back();
      if (!ends.empty() && ends.back() < event.end) continue;
      ends.push_back(event.end);
      return row;
    }
    open_.push_back({event.end});
    return open_.size() - 1;
  }

 private:
  std::vector<std::vector<steady_clock::time_point>> open_;  // ends of the events that enclose the present moment
};

json naming(const char* what, int rank, int thread, const std::string& name) {
  return {{"ph", "M"}, {"name", what}, {"pid", rank}, {"tid", thread}, {"args", {{"name", name}}}};
}

}  // namespace

json timeline_events(const std::vector<TraceEvent>& events, int rank, steady_clock::time_point zero) {
  std::vector<const TraceEvent*> sorted;
  for (const TraceEvent& event : events) sorted.push_back(&event);
  std::stable_sort(sorted.begin(), sorted.end(), [](const TraceEvent* a, const TraceEvent* b) {
    return a->begin != b->begin ? a->begin < b->begin : a->end > b->end;
  });
  json result = json::array({naming("process_name", rank, 0, fmt::format("rank {}", rank))});
  std::array<Rows, kLaneNames.size()> rows;
  std::map<int, std::string> threads;
  for (const TraceEvent* event : sorted) {
    const auto lane = static_cast<size_t>(event->lane);
    const size_t row = rows[lane].row_of(*event);
    const int thread = static_cast<int>(lane) * kRowsOfLane + static_cast<int>(row);
    threads[thread] = row == 0 ? kLaneNames[lane] : fmt::format("{} {}", kLaneNames[lane], row + 1);
    json entry = {{"ph", "X"},
                  {"name", event->name},
                  {"cat", kLaneNames[lane]},
                  {"pid", rank},
                  {"tid", thread},
                  {"ts", microseconds(event->begin - zero)},
                  {"dur", microseconds(event->end - event->begin)}};
    if (event->bytes > 0) entry["args"] = {{"bytes", event->bytes}};
    result.push_back(std::move(entry));
  }
  for (const auto& [thread, name] : threads) {
    result.push_back(naming("thread_name", rank, thread, name));
    result.push_back({{"ph", "M"},
                      {"name", "thread_sort_index"},
                      {"pid", rank},
                      {"tid", thread},
                      {"args", {{"sort_index", thread}}}});
  }
  return result;
}

namespace {

using std::chrono::nanoseconds;
using std::chrono::steady_clock;

// Of the first event, since the epoch of the hosts' clocks.
int64_t first_nanosecond(const Trace& trace, nanoseconds epoch) {
  int64_t first = std::numeric_limits<int64_t>::max();
  for (const TraceEvent& event : trace.events) {
    first = std::min<int64_t>(first, (event.begin.time_since_epoch() + epoch).count());
  }
  return first;
}

// This rank's events, without the brackets of an array.
std::string own_events(const Trace& trace, comm::Group& world) {
  const nanoseconds epoch =
      std::chrono::system_clock::now().time_since_epoch() - steady_clock::now().time_since_epoch();
  int64_t first = std::numeric_limits<int64_t>::max();
  for (const std::string& text :
       world.exchange_texts(std::to_string(first_nanosecond(trace, epoch)), "the first event of the timeline")) {
    first = std::min<int64_t>(first, std::stoll(text));
  }
  const std::string text =
      timeline_events(trace.events, world.rank(), steady_clock::time_point(nanoseconds(first) - epoch)).dump();
  return text.substr(1, text.size() - 2);
}

std::vector<std::string> collect(const std::string& own, comm::Group& world) {
  const std::string label = "timeline";
  const auto sizes = world.exchange_texts(std::to_string(own.size()), label);
  std::vector<std::string> all{own};
  if (world.rank() != 0) {
    at::Tensor bytes = at::empty({static_cast<int64_t>(own.size())}, at::kByte);
    std::copy(own.begin(), own.end(), bytes.mutable_data_ptr<uint8_t>());
    world.start_send(bytes, 0, label).finish();
    return {};
  }
  for (int rank = 1; rank < world.size(); ++rank) {
    at::Tensor bytes = at::empty({std::stoll(sizes[rank])}, at::kByte);
    world.start_receive(bytes, rank, label).finish();
    const auto* const begin = bytes.const_data_ptr<uint8_t>();
    all.emplace_back(begin, begin + bytes.numel());
  }
  return all;
}

}  // namespace

void check_timeline_path(const std::filesystem::path& path) {
  std::error_code error;
  const auto folder = path.has_parent_path() ? path.parent_path() : ".";
  const bool is_folder = std::filesystem::is_directory(path, error);
  if (path.empty() || is_folder || !std::filesystem::is_directory(folder, error)) {
    throw Error(ErrorKind::kUsage, {is_folder ? "the timeline cannot be written over a folder"
                                              : "the folder for the timeline does not exist",
                                    path.string(), "name a file in a folder that exists"});
  }
}

void write_timeline(comm::Group& world, const std::filesystem::path& path) {
  const Trace trace = stop_tracing();
  if (trace.dropped > 0) {
    log_warning("the timeline of rank {} holds only its first {} events, {} more came after them", world.rank(),
                format_count(static_cast<int64_t>(trace.events.size())),
                format_count(static_cast<int64_t>(trace.dropped)));
  }
  const auto parts = collect(own_events(trace, world), world);
  if (world.rank() != 0) return;
  std::ofstream file(path);
  file << R"({"displayTimeUnit":"ms","traceEvents":[)" << fmt::to_string(fmt::join(parts, ",\n")) << "]}\n";
  file.close();
  if (!file) {
    throw Error(ErrorKind::kMachine, {"the timeline could not be written: " + errno_text(errno), path.string(),
                                      "free some space or choose another folder"});
  }
}

}  // namespace tessera::engine
