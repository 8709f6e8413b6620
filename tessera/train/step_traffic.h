// What the steps of a run send from one rank to another, and how long they wait for others, by group of the mesh:
// without evaluations and checkpoints.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tessera/comm/group.h"
#include "tessera/train/trainer.h"

namespace tessera::train {

class StepTraffic {
 public:
  explicit StepTraffic(comm::Group& world) : world_(&world) {}

  // Around each step.
  void begin();
  void end();

  // Of all ranks, without groups over which nothing was sent. Collective; the same on every rank.
  std::vector<GroupTraffic> of_all_ranks() const;

 private:
  struct Sum {
    int64_t bytes_sent = 0;
    double waited = 0;
  };

  comm::Group* world_;
  std::vector<comm::GroupUse> before_;
  std::chrono::steady_clock::time_point begun_;
  std::map<std::string, Sum> sums_;  // of the steps so far, by group
  int64_t steps_ = 0;
  double seconds_ = 0;
};

}  // namespace tessera::train
