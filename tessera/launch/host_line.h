// The line between the launcher of a run and the one that it has started on another host, kept alive.
//
// There: over standard input comes kBeatWord every second (node_part.h has the other words). Here: between the bytes of
// the ranks' output come marks, in the form of commands to a terminal's application, which a terminal does not show:
//
//   ESC _ tessera alive ESC \             every second
//   ESC _ tessera failed 3 1 0 ESC \      rank, exit code, signal: at once, while that host still stops its other ranks
//
// Who hears nothing for allowed_silence() takes the other side for gone: its network, its power, or it is frozen.
#pragma once

#include <chrono>
#include <deque>
#include <optional>
#include <string>
#include <string_view>

#include "tessera/launch/rank_exit.h"

namespace tessera::launch {

inline constexpr const char* kBeatWord = "alive\n";
inline constexpr std::chrono::milliseconds kBeatEvery{1000};

// TESSERA_TIMEOUT of our environment, else 20 s: as long as ranks wait for each other is the other side waited for.
std::chrono::seconds allowed_silence();

// Of a host that has not said anything yet: ssh connects, a shell starts, and this program is loaded.
inline constexpr std::chrono::seconds kStartTime{120};

struct ToldFailure {
  int rank = 0;
  RankExit exit = {};
};

std::string alive_mark();
std::string failed_mark(const ToldFailure& failure);

// Takes the marks out of one stream of bytes.
class MarkFilter {
 public:
  // `bytes` without marks; what may be the beginning of one is kept for the next call.
  std::string take(std::string_view bytes);

  // What was kept.
  std::string finish();

  // Whether there has been any.
  bool found_one() const { return found_one_; }

  // A failure that has been told, each once, in their order.
  std::optional<ToldFailure> next_failure();

 private:
  std::string held_;
  bool found_one_ = false;
  std::deque<ToldFailure> failures_;
};

}  // namespace tessera::launch
