// A model whose training state is sharded by a policy. It needs to know three things of the model: its parameters,
// which of its modules announce themselves (and so form units), and when each of those begins and ends its forward:
//
//   before_forward(module, inputs)    gathers the parameters that the module uses           (stage 3)
//   after_forward(module, outputs)    releases them; hooks the outputs, so that backward gathers them again
//   … loss.backward() …               each gradient goes to the reducer from autograd's own post-accumulate hook
//   finish_backward()                 all gradients are reduced, nothing is gathered any more
//
// A parameter that several modules share belongs to the first and is gathered for each of them. Parameters that need no
// gradient form units of their own, without gradients or optimizer state. Modules may run in any order, several times,
// or not at all, as long as every rank runs the same ones.
//
// Owned by the engine through a shared_ptr (hooks in the autograd graph hold weak ones). Used by one thread at a time.
// After it is gone the model's parameters hold what they held last (at stage 3: nothing).
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "tessera/comm/communicator.h"
#include "tessera/zero/gather_order.h"
#include "tessera/zero/gradient_reducer.h"
#include "tessera/zero/policy.h"
#include "tessera/zero/tile_buffers.h"
#include "tessera/zero/unit.h"

namespace tessera::zero {

// What one announcing module uses: its own parameters and those of modules inside it that do not announce themselves.
struct ModuleParams {
  std::string name;
  std::vector<NamedParam> params;
};

struct ParamAlias {
  std::string name;       // another name under which the model lists …
  std::string canonical;  // … this parameter
};

class ShardedModel : public std::enable_shared_from_this<ShardedModel> {
 public:
  // Collective. `fill`: see Unit.
  static std::shared_ptr<ShardedModel> create(std::vector<ModuleParams> modules, const OptimizerNeeds& needs,
                                              const Policy& policy, std::shared_ptr<comm::Communicator> world,
                                              const FillParameter& fill);
  ~ShardedModel();

  void before_forward(size_t module, const std::vector<at::Tensor>& inputs);
  void after_forward(size_t module, const std::vector<at::Tensor>& outputs);

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

  // All parameters stay gathered between the two; see gathered.h for a guard.
  void hold_all();
  void drop_all();

  // Until every new weight that a step has sent round is there, and nobody reads this rank's any more. See
  // Policy::publishes_lazily.
  void finish_publishing();

  // Some units of it. Collective at stage 3; elsewhere they do nothing.
  void hold_units(const std::vector<size_t>& units);
  void drop_units(const std::vector<size_t>& units);

  struct ParamPlace {
    size_t unit, param;
  };
  std::optional<ParamPlace> place_of(const at::Tensor& parameter) const;

  // Whether a model that still lives takes this parameter's gradients.
  static bool is_taken(const at::Tensor& parameter);

  // The module's forward reads a parameter that another module owns. Takes effect in the call that runs, if one does.
  void also_uses(size_t module, size_t unit);
  // The innermost module whose forward runs.
  std::optional<size_t> running_module() const;

  // Before parameters change: nothing stays whole that nobody holds.
  void let_go_all();

  GradientReducer& reducer() { return *reducer_; }
  std::vector<TileBuffers>& tile_buffers() { return tile_buffers_; }  // see state_tiles.h
  size_t state_count() const { return needs_.states; }                // of a trainable unit
  const Policy& policy() const { return policy_; }
  at::Device device() const { return units_.front()->device(); }
  comm::Communicator& world() const { return *world_; }
  const std::vector<std::unique_ptr<Unit>>& units() const { return units_; }
  const std::vector<ParamAlias>& aliases() const { return aliases_; }
  Unit::Bytes model_state_bytes() const;
  int64_t param_count() const;  // elements, shared ones counted once

 private:
  struct Call;             // one forward of one module
  struct GradientArrived;  // autograd's hook on a parameter
  ShardedModel(const OptimizerNeeds& needs, const Policy& policy, std::shared_ptr<comm::Communicator> world);

  void make_units(std::vector<ModuleParams> modules, const FillParameter& fill);
  void watch_gradients(size_t unit);
  void hide_gradient(size_t unit, size_t param);
  void before_backward(const std::shared_ptr<Call>& call);
  void after_backward(Call& call);
  void gradient_arrived(size_t unit, size_t param, const at::Tensor& parameter);
  void hold(const std::vector<size_t>& units);
  void hold_in_turn(const std::vector<size_t>& units);
  void start_ahead();
  void end_pass();
  void drop(size_t unit);
  void let_go(size_t unit);
  bool make_room(int64_t numel, int64_t distance);
  std::vector<int64_t> distances() const;
  std::vector<size_t> all_units() const;

  Policy policy_;
  OptimizerNeeds needs_;
  std::vector<TileBuffers> tile_buffers_;
  std::shared_ptr<comm::Communicator> world_;
  std::shared_ptr<comm::Communicator> gathers_;
  std::shared_ptr<comm::Communicator> reductions_;
  std::vector<std::unique_ptr<Unit>> units_;
  std::vector<ParamAlias> aliases_;
  std::vector<std::vector<size_t>> units_of_module_;
  std::unique_ptr<GradientReducer> reducer_;
  GatherOrder order_;
  std::unordered_map<const c10::TensorImpl*, ParamPlace> places_;
  std::unordered_map<const c10::TensorImpl*, at::Tensor> hidden_;  // what stands for a gradient that was taken
  bool in_backward_ = false;
  UnannouncedBackward unannounced_;

  // Stage 3: who needs a unit's parameters now. A trainable unit is held once by backward until its gradients are
  // complete; a frozen one once for each call.
  std::vector<int> holders_;
  std::vector<bool> persistent_;
  std::vector<bool> held_by_backward_;
  std::vector<std::shared_ptr<Call>> calls_in_forward_;  // innermost last
  std::vector<std::weak_ptr<Call>> calls_in_backward_;
  std::vector<std::shared_ptr<void>> accumulators_;  // autograd's nodes, kept because they record the full shape
};

}  // namespace tessera::zero
