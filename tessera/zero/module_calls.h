// Which modules' forwards and backwards run, and so which units they hold: announced forwards from outside, backwards
// by hooks on what the forwards returned.
//
//   before_forward(module, inputs)    unshards the units that the module uses               (stage 3)
//   after_forward(module, outputs)    reshards them; hooks the outputs, so that backward unshards them again
//   gradients_complete(unit)          backward is done with a trainable unit
//   finish_backward()                 nothing is held any more
//
// A trainable unit is held once by backward, until its gradients are complete; a frozen one once for each call, until
// the gradients of the call's inputs are there. Of a unit that is whole at all times, as all are below stage 3, only
// new weights that are on their way are waited for.
//
// Owned by ShardedModel through a shared_ptr: hooks in the autograd graph hold weak ones.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <vector>

#include "tessera/zero/residency.h"

namespace tessera::zero {

class ModuleCalls : public std::enable_shared_from_this<ModuleCalls> {
 public:
  // `units` and `residency` outlive this. `shards_parameters`: stage 3.
  ModuleCalls(const Units& units, Residency& residency, std::vector<std::vector<size_t>> units_of_module,
              bool shards_parameters);

  void before_forward(size_t module, const std::vector<at::Tensor>& inputs);
  void after_forward(size_t module, const std::vector<at::Tensor>& outputs);
  void gradients_complete(size_t unit);
  void finish_backward();
  void abandon();  // after an exception in a pass

  // The module's forward reads a parameter that another module owns. Takes effect in the call that runs, if one does.
  void also_uses(size_t module, size_t unit);
  std::optional<size_t> running_module() const;  // the innermost whose forward runs

  bool gathers(size_t module) const { return !sharded_of_module_[module].empty(); }

 private:
  struct Call;  // one forward of one module
  void before_backward(const std::shared_ptr<Call>& call);
  void after_backward(Call& call);

  const Units& units_;
  Residency& residency_;
  std::vector<std::vector<size_t>> units_of_module_;
  std::vector<std::vector<size_t>> sharded_of_module_;  // … of them those that have to be gathered
  bool shards_parameters_;
  std::vector<bool> held_by_backward_;                   // of each unit
  std::vector<std::shared_ptr<Call>> calls_in_forward_;  // innermost last
  std::vector<std::weak_ptr<Call>> calls_in_backward_;
};

}  // namespace tessera::zero
