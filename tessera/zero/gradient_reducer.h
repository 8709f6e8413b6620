// From each parameter's gradient, as autograd delivers it, to the mean over ranks where the policy wants it.
//
//   add()              copies one gradient to its place in the unit's pending buffer (adds, if there is one already)
//                      and, once the unit is complete, starts its reduction while backward goes on; or a product
//                      writes it to its place() itself, and taken() goes on
//   finish_backward()  reduces what is not complete (a parameter that this rank did not use counts as zero) and waits
//                      for all
//
// Stages 0 and 1 keep the pending buffer through the accumulation and reduce once, at its boundary; stages 2 and 3
// reduce every micro step and add up the shards, so that no rank keeps a whole gradient. Reductions start in one order
// on every rank: the reverse of the units'.
//
// Note [Same bits at every stage]. The mean is summed in rank order in fp32 and rounded once (comm/ordered_sum.h), the
// all-reduce of stage 0 is that reduction and an all-gather, the norm is added up shard by shard, and the optimizer's
// arithmetic is elementwise: so for a given world size all stages compute the same bits. With accumulation the pairs
// {0, 1} and {2, 3} differ from each other by rounding, because they reduce at different times.
#pragma once

#include <ATen/core/Tensor.h>

#include <deque>
#include <memory>
#include <vector>

#include "tessera/kernels/gradient_place.h"
#include "tessera/storage/host_link.h"
#include "tessera/zero/policy.h"
#include "tessera/zero/quantized_reduction.h"
#include "tessera/zero/unit.h"

namespace tessera::zero {

class GradientReducer {
 public:
  static constexpr int64_t kMaxLeaving =
      2;  // gradients on their way to the disk: while one is written, the next is made

  // `units` outlive the reducer. `groups`: of each of them, over which it is reduced.
  GradientReducer(std::vector<Unit*> units, const Policy& policy, std::vector<DataGroups> groups);
  ~GradientReducer();

  // Whether the backward pass that runs, or comes next, is the last one before the step.
  void set_boundary(bool boundary) { boundary_ = boundary; }

  // At stages 0 and 1: the next step takes each rank's own gradients, so they are not reduced.
  void set_keeps_own(bool keeps_own) { keeps_own_ = keeps_own; }
  bool keeps_own() const { return keeps_own_; }

  // Takes the gradient of one parameter of a trainable unit, dense or sparse. True when all of the unit's have now come
  // in this backward.
  bool add(size_t unit, size_t param, const at::Tensor& given);

  // The same in two steps. Its place is in the dtype in which gradients are kept.
  kernels::GradientTaker::Place place(size_t unit, size_t param);
  bool taken(size_t unit, size_t param);

  // Collective.
  void finish_backward();

  // After the boundary's finish_backward: this rank's shard of the mean, and the part of it that this rank updates.
  // With keeps_own() its own gradients instead, multiplied as they are for the mean.
  at::Tensor reduced_shard(size_t unit) const;
  at::Tensor owned_grad(size_t unit) const;

  // Sum of the squares of what reduced_shard() gives, of the parameters that this rank counts (Unit::counted_squares);
  // known already where that rests on disk.
  optim::SumOfSquares sum_of_squares(size_t unit) const;

  // What reduced_shard() gives becomes the sum of it over the group, and what had a gradient on one of its ranks has
  // one. Collective.
  void add_over(size_t unit, comm::Group& group);

  // Which parameters had a gradient on this rank since the last clear().
  const std::vector<bool>& used(size_t unit) const { return gradients_[unit].used; }

  // In the middle of a backward: waits for the reductions that were started, and forgets all gradients.
  void abandon();

  // Forgets all gradients, of which nothing may be lent any more: the next one of each parameter overwrites.
  void clear();

 private:
  struct UnitGradients {
    at::Tensor pending;         // whole buffer, compute dtype; stages 0 and 1: the unit's own, 2 and 3: while needed
    std::vector<bool> filled;   // parameters whose place in `pending` holds a gradient
    std::vector<bool> arrived;  // parameters that had a gradient in this backward
    std::vector<bool> used;     // … since the last clear
    size_t arrived_count = 0;
    bool has_sum = false;         // the unit's gradient holds an earlier reduction, to add to
    optim::SumOfSquares squares;  // where it rests on disk: of the last reduction's sum
  };

  struct Reduction {
    size_t unit;
    at::Tensor result;
    bool adds;
    comm::Collective collective;
    std::optional<QuantizedReduction> quantized = {};  // instead of it: has no result yet
    storage::HostLink::Copy arriving = {};             // of the result, from the device into the host's memory
  };

  // A gradient on its way to the disk.
  struct Leaving {
    StateTensor home;
    storage::AlignedBuffer buffer;
    storage::SwapFile::Transfer transfer;
  };

  bool reduces_now() const { return policy_.shard_gradients || (boundary_ && !keeps_own_); }
  void open_pending(size_t unit);
  void complete_pending(size_t unit);
  void finish_own();
  void start_complete_units();
  void start_reduction(size_t unit);
  void finish_oldest();
  void start_arriving(Reduction reduction);
  void finish_oldest_arriving();
  void finish_arriving();
  void put_away(Reduction& reduction);
  void start_leaving(size_t unit, const Reduction& reduction);
  void finish_oldest_leaving();
  void finish_leaving();
  void end_backward();

  std::vector<Unit*> units_;
  Policy policy_;
  std::vector<DataGroups> groups_;
  std::vector<UnitGradients> gradients_;
  std::deque<Reduction> in_flight_;
  int64_t in_flight_numel_ = 0;                     // of their units
  std::optional<storage::StagingBuffers> staging_;  // where the gradients of a device rest elsewhere
  std::deque<Reduction> arriving_;                  // as many as it has buffers, at most
  storage::BufferPool leaving_buffers_{kMaxLeaving};
  std::deque<Leaving> leaving_;
  size_t next_to_start_ = 0;  // counts from the last unit backwards
  bool boundary_ = true;
  bool keeps_own_ = false;
};

}  // namespace tessera::zero
