// A guard under which all parameters of a model are whole on every rank, to look at them or to run the model without
// the engine. Collective at stage 3; elsewhere it does nothing. What is written to the parameters meanwhile is lost.
//
//   { zero::Gathered whole(model);  … read parameters … }
#pragma once

#include "tessera/zero/sharded_model.h"

namespace tessera::zero {

class Gathered {
 public:
  explicit Gathered(ShardedModel& model) : model_(model) { model_.hold_all(); }
  ~Gathered() { model_.drop_all(); }
  Gathered(const Gathered&) = delete;
  Gathered& operator=(const Gathered&) = delete;

 private:
  ShardedModel& model_;  // borrowed
};

}  // namespace tessera::zero
