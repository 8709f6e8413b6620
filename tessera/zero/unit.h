// A unit: parameters that are gathered, reduced and updated together (a transformer block, the embeddings), all
// trainable, all frozen, or all bytes (layout::Storage), and every buffer that holds their training state on this rank.
//
//   buffer          dtype     elements                         exists
//   full            compute   layout().numel()                 always, or while gathered where shards_parameters()
//   compute         compute   owned()                          a view of full, but where shards_parameters()
//   master          master    owned()                          trainable, in a dtype of its own
//   state[k]        state     owned()                          trainable
//   grad            grad      whole (0, 1) or shard (2, 3)     trainable
//   worker_error    fp32      layout().numel()                 the optimizer averages by signs, and there are peers
//   server_error    fp32      shard                            …
//   persistent      compute   its small parameters             where not all are; stage 3 under DeepSpeed's names
//
// Of bytes the compute dtype is uint8, and an element is a byte.
//
// owned() is what this rank updates: its shard, at stage 0 everything. Compute, master, state and a sharded grad are
// StateTensors: they rest in memory or in a swap file, as the policy's offload says. In one dtype master is the compute
// weights themselves, and rests where they do.
//
// Note [Views survive release]. Each parameter is a view into `full` (set_data). Releasing a unit frees the bytes under
// the StorageImpl of `full` and leaves the object; gathering allocates them again and fills them. So every other view,
// also those that autograd saved (`weight.t()` inside a linear), is valid again after the gather. Views of what a
// client gathered and gave back keep the bytes instead, as it may have kept them on purpose; not where parameters are
// bytes, of which libraries hold second references. The parameters themselves become placeholders meanwhile, so that
// touching one by mistake is an error that says so (unreadable.h); those that persist, copies of their values.
//
// Owned by ShardedModel; used by the thread that runs forward, backward and step.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>
#include <c10/util/accumulate.h>

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tessera/layout/box.h"
#include "tessera/layout/flat_layout.h"
#include "tessera/layout/param_spec.h"
#include "tessera/optim/clip.h"
#include "tessera/zero/data_groups.h"
#include "tessera/zero/gather_source.h"
#include "tessera/zero/persistent_params.h"
#include "tessera/zero/policy.h"
#include "tessera/zero/state_tensor.h"

namespace tessera::zero {

enum class UnitState {
  kSharded,    // stage 3: this rank's shard only; parameters are placeholders
  kGathering,  // shard, and a full buffer that is being filled: do not read it yet
  kGathered,   // the full buffer is whole; parameters may be used. The only state where !shards_parameters().
};

struct NamedParam {
  layout::ParamSpec spec;  // its shape: where empty, that of the tensor
  at::Tensor tensor;       // the module's own parameter: its data is replaced, its identity kept
  size_t group = 0;        // the optimizer's parameter group
  std::optional<std::vector<int64_t>> shape = {};  // where `tensor` is a placeholder, whose values come from elsewhere

  const std::string& name() const { return spec.name; }
  bool trainable() const { return spec.trains && tensor.requires_grad(); }
  // Then `tensor` may be of any dtype: the unit has its bytes, the last dimension being that many times as long.
  bool is_bytes() const { return spec.storage == layout::Storage::kBytes; }

  // Filled in by ShardedModel, from the specification and this rank's place in the mesh.
  layout::Box box = {};   // which part of the global tensor this is
  bool counts = true;     // of the ranks that hold this part over the model axes, this one counts and saves it
  bool persists = false;  // stays readable while its unit is sharded

  bool has_values() const;  // false: it is only declared, or a placeholder
  std::vector<int64_t> full_shape() const;
  int64_t numel() const { return c10::multiply_integers(full_shape()); }
};

// What the optimizer keeps for a trainable unit.
struct OptimizerNeeds {
  size_t states = 0;         // tensors of an element a weight
  size_t numbers = 0;        // a parameter
  bool sign_errors = false;  // see comm/sign_compression.h
};

// Writes the initial value (fp32, or bytes) of the named parameter into `value`, the same on every rank; of its global
// shape, where ranks hold parts of it.
using FillParameter = std::function<void(const std::string& name, at::Tensor value)>;

class Unit {
 public:
  // Collective: every rank makes its units in the same order. Initial values are the parameters' present ones on the
  // groups' first rank; where there are none, every rank computes them by `fill`. Begins gathered at every stage.
  Unit(std::string name, std::vector<NamedParam> params, const OptimizerNeeds& needs, const Policy& policy,
       const DataGroups& groups, const FillParameter& fill);
  ~Unit();
  Unit(const Unit&) = delete;
  Unit& operator=(const Unit&) = delete;

  const std::string& name() const { return name_; }
  const layout::FlatLayout& layout() const { return layout_; }
  const std::vector<NamedParam>& params() const { return params_; }
  const DataGroups& groups() const { return groups_; }
  bool trainable() const { return trainable_; }
  bool is_bytes() const { return params_.front().is_bytes(); }
  bool has_master() const { return policy_.has_master(); }  // master() is not the compute weights themselves
  UnitState state() const { return state_; }

  // Stage 3, unless all of its parameters persist: then the unit is whole at all times, as at stage 2.
  bool shards_parameters() const { return policy_.shard_parameters; }
  at::Device device() const { return full_.device(); }  // where it computes
  layout::Range owned() const { return owned_; }

  // The part of the buffer that a rank of groups().all writes into a checkpoint: its shard, dealt out over the
  // replicas.
  layout::Range saved_by(int rank) const;

  // Nothing happens where the parameters always stay. A gather costs one all-gather, before which a shard
  // comes in from the disk where it rests there: start_fetch() begins that ahead of time, if a buffer is free.
  void start_fetch();
  void forget_fetch();  // the shard is about to change, or has changed
  enum class Values {
    kOfPasses,  // what forward and backward compute with
    kStored,    // the compute weights, where quantized_weights makes those of passes coarser
  };
  void start_gather(Values values = Values::kOfPasses);
  void finish_gather();
  enum class Views {
    kFollow,     // are empty until the next gather, and have its values then
    kKeepBytes,  // stay what they are
  };
  void release(Views views = Views::kFollow);
  bool has(Values values) const { return values == Values::kOfPasses || !coarse_; }  // while gathered

  // While gathered: parameters whose data is no longer in the unit's buffer, since somebody outside gave them other
  // data. Not those that are bytes.
  std::vector<size_t> replaced() const;
  // The buffer takes the values that such a parameter was given, and its data is in the buffer again. False where they
  // have another dtype or shape: then nothing changes.
  bool take_back(size_t param);

  // owned() elements: what the optimizer updates. For a frozen unit: undefined.
  const StateTensor& master() const { return master_; }
  const std::vector<StateTensor>& optimizer_state() const { return optimizer_state_; }

  // The compute weights under master(), owned() elements; the same tensor where there is no master of its own.
  const StateTensor& compute() const { return compute_; }

  // The weights that a checkpoint stores and restores, owned() elements: the master's, of a frozen unit the compute
  // ones.
  const StateTensor& stored_weights() const { return trainable_ ? master_ : compute_; }

  // Its parameters that persist; null where there are none, or no others.
  const PersistentParams* persistent() const { return persistent_ ? &*persistent_ : nullptr; }

  // Numbers of the parameter, OptimizerNeeds::numbers of them.
  std::span<double> numbers(size_t param) {
    return std::span(numbers_).subspan(param * needs_.numbers, needs_.numbers);
  }
  std::span<const double> numbers(size_t param) const {
    return std::span(numbers_).subspan(param * needs_.numbers, needs_.numbers);
  }

  // What compression has lost so far: of this rank's whole buffer, and of the mean that it computes for its shard.
  // Undefined where nothing is compressed.
  const at::Tensor& worker_error() const { return worker_error_; }
  const at::Tensor& server_error() const { return server_error_; }

  std::vector<int64_t>& steps() { return steps_; }  // optimizer steps that each parameter has seen
  const std::vector<int64_t>& steps() const { return steps_; }

  // Sum of the squares of `shard`, this rank's shard of something, over the parameters that this rank counts in a norm:
  // of the ranks of the mesh that hold the same part of a parameter one does.
  optim::SumOfSquares counted_squares(const at::Tensor& shard) const;

  // The whole buffer (stages 0, 1) or this rank's shard (2, 3). For a frozen unit: undefined.
  const StateTensor& grad() const { return grad_; }

  // The gathered parameters were written to on rank `root` of groups().all: every rank takes the values over, into what
  // it owns as well. Collective.
  void take_over(int root);

  // After master() has changed: rounds it into this rank's compute weights, …
  void refresh_compute();
  // After it: the master weights become what the compute weights hold of them.
  void round_master();
  // … and, where parameters are whole but each rank updates only its shard, or ranks hold secondary shards, sends them
  // round. Until somebody waits for them, the parameters are partly old, and so are those that persist.
  void start_publish();
  void finish_persistent();  // of the latter alone
  void finish_publish();
  // As finish_publish(), but others may still read what is this rank's: until settle() it must not change.
  void take_published();

  // Bytes of all that stays between steps: parameters, gradients, master weights, optimizer state; in memory and on
  // disk.
  struct Bytes {
    int64_t memory = 0;
    int64_t disk = 0;
  };
  Bytes model_state_bytes() const;

 private:
  void attach_views();
  void attach_view(size_t param);
  void attach_placeholders();
  void allocate_full();
  void free_full();
  void fetch();
  void give_back_fetched();

  std::string name_;
  std::vector<NamedParam> params_;
  Policy policy_;
  DataGroups groups_;
  layout::FlatLayout layout_;
  bool trainable_;
  OptimizerNeeds needs_;  // nothing where the unit is frozen
  layout::Range owned_;
  UnitState state_ = UnitState::kGathered;

  at::Tensor full_;
  bool coarse_ = false;                   // … holds what came out of quantized weights
  std::vector<at::Tensor> placeholders_;  // of each parameter, where parameters are sharded
  StateTensor compute_;                   // a view of full_, at stage 3 the shard
  std::optional<GatherSource> source_;    // stage 3: where not the shard itself is gathered
  std::optional<PersistentParams> persistent_;
  bool refreshes_ = false;    // … of values that have changed
  bool all_persist_ = false;  // at stage 3, so that it is whole
  StateTensor master_;
  std::vector<StateTensor> optimizer_state_;
  std::vector<double> numbers_;
  at::Tensor worker_error_;
  at::Tensor server_error_;
  std::vector<int64_t> steps_;
  StateTensor grad_;

  std::optional<storage::AlignedBuffer> fetched_;  // the shard, coming in or there
  storage::SwapFile::Transfer fetching_ = 0;
  storage::HostLink::Copy coming_;  // the shard, from the host to where it is gathered
  comm::Collective gathering_;
  comm::Collective publishing_;
  std::optional<c10::Stream> allocated_on_;  // … of full_, where that is on a device
};

// Frees or allocates the bytes under a tensor without touching the tensor itself. See Note [Views survive release].
void free_storage(const at::Tensor& tensor);
void allocate_storage(const at::Tensor& tensor);

// A parameter that was declared with a shape but has no bytes yet (nn's layers make such ones).
bool is_declared_only(const at::Tensor& tensor);

}  // namespace tessera::zero
