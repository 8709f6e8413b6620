// The arithmetic of one step on "my slice": flat tensors, no ranks, no stages, no communication.
//
// Whoever owns the slices also owns the state tensors; an optimizer only says how many it needs and what they are
// called, so that a checkpoint can name them. All tensors of a slice: fp32, flat, the same numel, 64-byte aligned, a
// multiple of 16 elements long (padding included, whose gradient is zero), on one device.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tessera/optim/param_group.h"

namespace tessera::optim {

// One parameter's part of what this rank updates.
struct ParamSlice {
  at::Tensor weight;              // fp32 master weights, updated in place
  at::Tensor grad;                // may be overwritten
  std::vector<at::Tensor> state;  // in the order of state_names(), zero before the first step
  int64_t step = 0;               // of this parameter, counting from 1
  size_t group = 0;               // index into the groups
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;

  virtual std::vector<std::string> state_names() const = 0;

  // Updates every slice from grad / grad_divisor (loss scale and clipping in one number).
  virtual void update(std::span<ParamSlice> slices, std::span<const ParamGroup> groups, double grad_divisor) const = 0;
};

}  // namespace tessera::optim
