// One parameter's training state, looked at and changed from outside of a step: the weights that the optimizer updates,
// what it keeps for each of them, and the mean gradient (between the boundary's backward and the step, still multiplied
// by the loss scale).
//
// Full values have the parameter's shape and are the same on every rank; collective where the state is sharded. Local
// values: this rank's part of the flattened parameter, empty where it owns none of it. Copies: weights and states in
// fp32, gradients in the dtype in which they add up.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/zero/sharded_model.h"

namespace tessera::zero {

struct StateOfParam {
  enum class Kind { kWeight, kGrad, kOptimizerState } kind = Kind::kWeight;
  size_t state = 0;  // which of the optimizer's
};

at::Tensor full_value(ShardedModel& model, ShardedModel::ParamPlace place, StateOfParam which);
at::Tensor local_value(ShardedModel& model, ShardedModel::ParamPlace place, StateOfParam which);

// The full value of which every rank has its local one.
at::Tensor assembled(ShardedModel& model, ShardedModel::ParamPlace place, const at::Tensor& local);

// `value`: on every rank the same. New weights are published: the parameter itself changes as well.
void set_full_value(ShardedModel& model, ShardedModel::ParamPlace place, StateOfParam which, const at::Tensor& value);
// Each rank its own part; collective for weights at stages 1 and 2, which send them round.
void set_local_value(ShardedModel& model, ShardedModel::ParamPlace place, StateOfParam which, const at::Tensor& value);

// The weights become what the whole parameter holds now, which every rank has written to in the same way, where that is
// not what they round to: elsewhere they keep their digits.
void take_written(ShardedModel& model, ShardedModel::ParamPlace place);

// The same of parameters that were given other data from outside (`parameter.data = value`), where they are whole at
// all times; then they are the engine's storage again, which steps and saves are of. Data of another dtype or shape is
// left alone; kUsage for a parameter that is trained, if so wanted.
enum class Unlike { kLeave, kRefuse };
void take_replaced_data(ShardedModel& model, Unlike unlike);

}  // namespace tessera::zero
