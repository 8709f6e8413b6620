// Training state that a program moves from a device into host memory for a while, as it wants the device for something
// else, and back: DeepSpeed's offload_states() and reload_states(). The tensors stay the same objects, without bytes
// meanwhile, so every view of them is valid again afterwards; nothing of the model may run until then. Parameters that
// are moved are unreadable (unreadable.h). What rests on the host or on disk stays where it is.
//
// Not collective, but every rank must do the same before the model runs again.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/zero/sharded_model.h"

namespace tessera::zero {

struct StatesToMove {
  bool optimizer = false;   // moments, and what compression has lost
  bool master = false;      // fp32 weights apart from the parameters; where they are the same, they go with these
  bool parameters = false;  // at stage 3 this rank's shards, of frozen ones too
  bool gradients = false;
  std::vector<at::Tensor> of_client = {};  // of an optimizer of Python's, which keeps its own
  bool pinned = true;                      // into Offload::pinned, as far as its limit goes
};

class MovedStates {
 public:
  // The model outlives this, and no update or publishing is under way.
  MovedStates(ShardedModel& model, const StatesToMove& states);
  MovedStates(const MovedStates&) = delete;
  MovedStates& operator=(const MovedStates&) = delete;

  void bring_back();  // once

 private:
  struct Moved {
    at::Tensor home;  // its whole storage
    at::Tensor on_host;
  };

  void move(const StateTensor& state);
  void hide(const at::Tensor& parameter, const std::string& name);

  const std::shared_ptr<storage::PinnedMemory> memory_;  // null: pageable
  std::vector<Moved> moved_;
  std::vector<std::pair<at::Tensor, at::Tensor>> hidden_;  // parameter, what it shows otherwise
};

}  // namespace tessera::zero
