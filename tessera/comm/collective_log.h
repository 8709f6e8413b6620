// What collectives cost, one by one, for those who ask: the ds_config's comms_logger. Nothing is recorded, and a
// collective costs one atomic load, until start_collective_log(). Any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace tessera::comm {

struct CollectiveCost {
  const char* operation;  // as torch.distributed calls it, e.g. "all_gather_into_tensor"; a static string
  int64_t bytes = 0;      // of its message: in an all-gather and a reduce-scatter the part of one rank, else all of it
  int ranks = 1;          // of the group; of a message between two: 2
  std::chrono::nanoseconds time{};  // from its start until its result was taken: what ran beside it is in it
};

void start_collective_log();
bool logs_collectives();
void log_collective(const CollectiveCost& cost);

// What was recorded since the last call; at most a million, of which the later ones are left out.
std::vector<CollectiveCost> take_collective_log();

// A table of it, a line for each operation and size: how often, how long in all and on average.
std::string table_of(const std::vector<CollectiveCost>& costs);

}  // namespace tessera::comm
