// Stage 3: which units are unsharded now, and so take memory; which are prefetched, and which are evicted to make room.
//
// Units that are whole at all times (Unit::shards_parameters) count for none of it.
//
// A unit is held by whoever needs its parameters: a module's forward or backward, or somebody who reads them. A held
// unit stays; one that nobody holds goes at once, unless the options let it stay because it is small or is
// used again soon. Every rank decides the same from the same record of what was used in which order.
//
// Owned by ShardedModel, over its units; used by its thread.
#pragma once

#include <memory>
#include <vector>

#include "tessera/zero/gather_order.h"
#include "tessera/zero/policy.h"
#include "tessera/zero/unit.h"

namespace tessera::zero {

using Units = std::vector<std::unique_ptr<Unit>>;

class Residency {
 public:
  // `units` outlive this. `persistent`, one for each: stays unsharded until a step changes it. `shards`: ranks.
  Residency(const Units& units, std::vector<bool> persistent, const config::ResidencyOptions& options, int shards);

  // Gathers what is not there yet, and waits for it; also what is there with other values, if nobody holds it.
  // Collective.
  void hold(const std::vector<size_t>& units, Unit::Values values = Unit::Values::kOfPasses);

  // … in the order of a pass, which is remembered; and prefetches what comes next in it.
  void hold_in_turn(const std::vector<size_t>& units);

  // One holder fewer; where that was the last, the unit goes or stays as the policy says.
  void drop(size_t unit);

  // One holder fewer of each; without holders they go. What a client has kept of them stays.
  void drop_and_evict(const std::vector<size_t>& units);

  // Reshards the unit if nobody holds it.
  void evict(size_t unit, Unit::Views views = Unit::Views::kFollow);
  void evict_all();

  // After a forward without gradients, or a backward: nothing prefetched is kept for the next.
  void end_pass();

  // After an exception in a pass.
  void forget_holders();

 private:
  void prefetch();
  bool make_room(int64_t numel, int64_t distance);
  std::vector<int64_t> distances() const;

  const Units& units_;
  std::vector<bool> persistent_;
  config::ResidencyOptions options_;
  int shards_;
  GatherOrder order_;
  std::vector<int> holders_;
};

}  // namespace tessera::zero
