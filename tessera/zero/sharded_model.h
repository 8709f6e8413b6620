// A model whose training state is sharded by a policy. It needs to know three things of the model: its parameters,
// which of its modules announce themselves (and so form units), and when each of those begins and ends its forward:
//
//   before_forward(module, inputs)    gathers the parameters that the module uses           (stage 3)
//   after_forward(module, outputs)    releases them; hooks the outputs, so that backward gathers them again
//   … loss.backward() …               each gradient goes to the reducer from autograd's own post-accumulate hook
//   finish_backward()                 all gradients are reduced, nothing is gathered any more
//
// Made of: units (unit_builder.h), what is unsharded now (residency.h), whose forward and backward runs
// (module_calls.h), gradients as they arrive (gradient_hooks.h) and are reduced (gradient_reducer.h).
//
// Modules may run in any order, several times, or not at all, as long as every rank of the data-parallel groups runs
// the same ones. Owned by the engine through a shared_ptr. Used by one thread at a time. After it is gone the model's
// parameters hold what they held last (at stage 3: nothing).
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/zero/gradient_hooks.h"
#include "tessera/zero/gradient_reducer.h"
#include "tessera/zero/module_calls.h"
#include "tessera/zero/tile_buffers.h"
#include "tessera/zero/unit_builder.h"

namespace tessera::zero {

class ShardedModel : public std::enable_shared_from_this<ShardedModel> {
 public:
  using ParamPlace = zero::ParamPlace;

  // Collective. `fill`: see Unit. Errors: as those of build_units.
  static std::shared_ptr<ShardedModel> create(std::vector<ModuleParams> modules, const OptimizerNeeds& needs,
                                              const Policy& policy, std::shared_ptr<comm::Mesh> mesh,
                                              const FillParameter& fill);

  void before_forward(size_t module, const std::vector<at::Tensor>& inputs) { calls_->before_forward(module, inputs); }
  void after_forward(size_t module, const std::vector<at::Tensor>& outputs) { calls_->after_forward(module, outputs); }

  // Whether the two have something to do. What a module reads of another's counts as that of the innermost around it
  // that is announced.
  bool wants_announcement(size_t module) const { return policy_.publishes_lazily || calls_->gathers(module); }

  // Collective: call finish_backward() once autograd has returned. Where gradients arrive without begin_backward(),
  // because somebody called loss.backward(), the listener is told when they begin to and once autograd is done.
  void begin_backward() { in_backward_ = true; }
  void finish_backward();
  struct UnannouncedBackward {
    std::function<void()> begins, ends;
  };
  void set_unannounced_backward(UnannouncedBackward listener) { unannounced_ = std::move(listener); }

  // After an exception in a forward or backward: forgets what was under way, and all gradients. Where only some ranks
  // had the exception, the others wait for them and get an error.
  void abandon_pass();

  // All parameters stay gathered between the two; tessera::Gathered (engine_base.h) is a guard.
  void hold_all();
  void drop_all() { drop_units(all_units()); }

  // Some units of it. Collective at stage 3; elsewhere they do nothing.
  void hold_units(const std::vector<size_t>& units);
  void drop_units(const std::vector<size_t>& units);

  // What rank `root` of the world wrote to a gathered unit: those that share the unit with it take its values over;
  // ranks that have other parts of the model, those of the rank that is to them what `root` is to its own.
  // ErrorKind::kUsage where there is no such rank. Collective.
  void take_over(size_t unit, int root);

  // Until every new weight that a step has sent round is there, and nobody reads this rank's any more. See
  // Policy::publishes_lazily.
  void finish_publishing();
  void finish_persistent();  // … of parameters that persist alone, which programs may read at once

  // Before parameters change: nothing stays whole that nobody holds.
  void let_go_all();

  // The ranks that hold such a parameter, and are this one's place otherwise.
  comm::Group& holders_group(const layout::Holders& holders);

  std::optional<ParamPlace> place_of(const at::Tensor& parameter) const;

  // Whether a model that still lives takes this parameter's gradients.
  static bool is_taken(const at::Tensor& parameter) { return GradientHooks::is_watched(parameter); }

  // See module_calls.h.
  void also_uses(size_t module, size_t unit) { calls_->also_uses(module, unit); }
  std::optional<size_t> running_module() const { return calls_->running_module(); }

  GradientReducer& reducer() { return *reducer_; }
  std::vector<TileBuffers>& tile_buffers() { return tile_buffers_; }  // see state_tiles.h
  size_t state_count() const { return needs_.states; }                // of a trainable unit
  const Policy& policy() const { return policy_; }
  at::Device device() const { return built_.units.front()->device(); }
  comm::Mesh& mesh() const { return *mesh_; }
  comm::Group& world() const { return *mesh_->world(); }  // all ranks of the run
  const DataGroups& groups() { return groups_.of({}); }   // of parameters that every rank of the data axes has
  const DataGroups& groups_of(size_t unit) { return groups_.of(built_.in_parts[unit]); }
  const Units& units() const { return built_.units; }
  const std::vector<ParamAlias>& aliases() const { return built_.aliases; }
  Unit::Bytes model_state_bytes() const;
  int64_t param_count() const;  // elements on this rank before sharding, shared ones counted once

 private:
  ShardedModel(const OptimizerNeeds& needs, const Policy& policy, std::shared_ptr<comm::Mesh> mesh);
  void build(std::vector<ModuleParams> modules, const FillParameter& fill);
  void note_backward();  // that it goes on, where nobody has said so
  void gradient_arrived(size_t unit, size_t param, const at::Tensor& parameter);
  std::vector<size_t> all_units() const;

  Policy policy_;
  OptimizerNeeds needs_;
  std::shared_ptr<comm::Mesh> mesh_;
  UnitGroups groups_;
  UnitGroups gathers_, reductions_;  // channels
  std::map<std::pair<std::string, std::vector<int>>, std::shared_ptr<comm::Group>> holders_groups_;
  std::vector<TileBuffers> tile_buffers_;
  BuiltUnits built_;
  std::optional<Residency> residency_;
  std::shared_ptr<ModuleCalls> calls_;
  std::unique_ptr<GradientReducer> reducer_;
  GradientHooks hooks_;  // goes first
  bool in_backward_ = false;
  UnannouncedBackward unannounced_;
};

}  // namespace tessera::zero
