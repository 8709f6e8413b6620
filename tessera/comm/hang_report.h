// What is said of a hang: what each rank says of itself, as text. Nothing here communicates (wait_board.h does).
//
//   rank  host   waits for                        number  group     for
//   0, 2  gpu01  all-gather of 'layers.3'         1277    dp_shard  10 min 00 s
//   1     gpu01  nothing: at 'next batches' for 9 min 00 s; last the reduce-scatter of 'layers.4' (number 1276), …
//
// Where ranks hold parts of a model, each is named with its place: rank 1 (dp_shard 0, tp 1).
//
// A number is that of a collective among those of its group and channel, which every rank counts alike.
#pragma once

#include <chrono>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace tessera::comm {

// A collective, as a rank knows it.
struct Awaited {
  std::string operation;  // "all-gather of 'layers.3'"
  std::string group;      // empty: the world
  std::string channel;    // in which numbers count; the same on every rank of it
  int64_t number = -1;    // -1: it has none
};

// What one rank says of itself.
struct RankState {
  struct Wait {
    Awaited awaited;
    std::chrono::duration<double> lasted{0};
  };

  int rank = 0;
  std::string place = {};  // in the mesh, "dp_shard 0, tp 1"; empty: its number says all. Not its own to say
  bool answers = true;     // else nothing below is known
  std::string host = {};
  int process = 0;
  std::vector<Wait> waits = {};           // several: of several threads
  std::optional<Wait> last = {};          // the wait that ended last, and how long ago
  std::string activity = {};              // "next batches" (activity.h); may be empty
  std::chrono::duration<double> busy{0};  // with it
  std::vector<std::string> frames = {};   // of its main thread, innermost first
  std::string script = {};                // the same of an interpreter's program
};

nlohmann::json json_of(const RankState& state);

// Throws what the JSON library throws.
RankState rank_state_of(const nlohmann::json& json);

// One sentence: which rank is behind, which does not answer, or which ranks called different collectives. `states`: of
// every rank, in rank order.
std::string hang_conclusion(const std::vector<RankState>& states);

// The table, the conclusion and the stacks; several lines.
std::string hang_report(const std::vector<RankState>& states);

// "rank 3", "ranks 0 to 2, 5, 7"; ascending. `places` of all ranks, or none: "rank 3 (dp_shard 1, tp 1)", where they
// are few.
std::string ranks_in_words(const std::vector<int>& ranks, const std::vector<std::string>& places = {});

}  // namespace tessera::comm
