// The arithmetic of one step on "my shards": flat tensors, no ranks, no stages. What needs more than this rank's part
// of a parameter (LAMB's norms, Muon's whole matrices) asks Peers for it.
//
// Whoever owns the shards also owns the state tensors; an optimizer only says how many it needs and what they are
// called, so that a checkpoint can name them. All tensors of a shard: flat, contiguous, the same numel, 64-byte
// aligned, a multiple of 16 elements long (padding included, whose gradient is zero), on one device.
//
// An optimizer of your own is two functions, state_names() and update(); see InitializeOptions::optimizer.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tessera/optim/optimizer.h"

namespace tessera::optim {

// Parameters that share their hyperparameters. A schedule writes `lr` (and, for OneCycle, `beta1`) before each step.
struct ParamGroup {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  double momentum = 0;          // SGD, Muon
  bool orthogonalized = false;  // Muon: these are the matrices; the rest is Adam's
};

// One parameter's part of what this rank updates.
struct ParamShard {
  at::Tensor weight;              // master weights, updated in place; fp32 (see takes_any_dtype)
  at::Tensor grad;                // may be overwritten; fp32 (see takes_any_dtype)
  std::vector<at::Tensor> state;  // in the order of state_names(), zero before the first step; fp32
  at::Tensor compute = {};  // where the new weight is needed in the compute dtype; undefined where `weight` serves
  int64_t step = 0;         // of this parameter, counting from 1
  size_t group = 0;         // index into the groups
  std::span<double> numbers = {};  // of the whole parameter, in the order of number_names(); shared by its shards
  size_t param = 0;                // index into the params of this update; a parameter's shards are in order, and may
                                   // be several on one rank
  int64_t first = 0;               // index of the shard's first element in the flattened parameter
};

// A parameter as the model has it.
struct WholeParam {
  std::string name;
  std::vector<int64_t> shape;
  int64_t numel = 0;
  size_t group = 0;
};

// What the ranks that hold the other shards of the same parameters do together. Collective: every rank calls the same
// methods in the same order, even one that has no shards.
class Peers {
 public:
  virtual ~Peers() = default;

  // `of_shards`: `width` values a shard. Returns `width` sums a parameter, over its shards on all ranks, added in one
  // order at every stage and so with the same bits on every rank.
  virtual std::vector<double> sum_by_param(std::span<const ParamShard> shards, std::span<const double> of_shards,
                                           size_t width) = 0;

  // Of each parameter the shards' grads put together, flattened, fp32; undefined for parameters without shards here.
  virtual std::vector<at::Tensor> whole_grads(std::span<const ParamShard> shards) = 0;

  // For an optimizer that averages_by_signs(). values[i], one a shard, like its weight: become their mean over the
  // ranks, as well as one bit an element and one number a shard can say it; what the rounding loses is added next time.
  // Elements where live[i] is 0 come out as 0: a sign has no zero. On one rank nothing changes.
  virtual void mean_by_signs(std::span<const ParamShard> shards, std::span<at::Tensor> values,
                             std::span<const at::Tensor> live) = 0;

  // Forgets what earlier roundings lost.
  virtual void clear_sign_errors() = 0;
};

struct UpdateInput {
  std::span<const ParamGroup> groups;
  int64_t step = 1;         // of the run, counting from 1 the steps that were not skipped
  double grad_divisor = 1;  // gradients come in multiplied by this: loss scale and clipping in one number
  std::span<const WholeParam> params = {};  // that ParamShard::param counts
  Peers* peers = nullptr;  // borrowed; null for an optimizer that is elementwise() or takes_whole_model()
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;

  virtual std::vector<std::string> state_names() const = 0;

  // Numbers that the optimizer keeps for each parameter, 0 before the first step; the same on every rank.
  virtual std::vector<std::string> number_names() const { return {}; }

  // Updates every shard.
  virtual void update(std::span<ParamShard> shards, const UpdateInput& input) const = 0;

  // True: weight, grad and state come in whatever dtypes the run has, and update() writes `compute` as well. False: all
  // are fp32, converted outside where they are not, and the new weights are rounded outside.
  virtual bool takes_any_dtype() const { return false; }

  // True: the new value of an element depends on that element's own gradient, weight and state alone, so update() may
  // be given any part of a unit, or parts of several, without peers. What rests on disk then comes in by parts, and
  // small units are updated together.
  virtual bool elementwise() const { return false; }

  // True: update() wants the shards of all units in one call. Its params are then those of the whole model; weights,
  // gradients and state must be fp32 and in memory, and there are no peers.
  virtual bool takes_whole_model() const { return false; }

  // True: the optimizer is one of those that communicate compressed tensors. Weights and states are then whole on every
  // rank, and the three functions below hold.
  virtual bool averages_by_signs() const { return false; }

  // Whether the step takes each rank's own gradients, and averages what it needs to itself, instead of their mean.
  virtual bool takes_own_gradients(int64_t /*step*/) const { return false; }

  // Whether the weights and states of a parameter with these numbers differ between the ranks.
  virtual bool ranks_differ(std::span<const double> /*numbers*/) const { return false; }
};

}  // namespace tessera::optim
