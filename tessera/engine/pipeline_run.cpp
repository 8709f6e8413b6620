#include "tessera/engine/pipeline_run.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <tuple>
#include <type_traits>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/config/ds_config.h"
#include "tessera/engine/engine_base.h"
#include "tessera/nn/deferred_weights.h"
#include "tessera/pipeline/schedule_kinds.h"

namespace tessera::engine {

using pipeline::Action;
using pipeline::Work;

namespace {

// What goes from a stage to the next, told before it comes: how many tensors; of each its dtype, whether backward goes
// back through it, dimensions, sizes.
constexpr size_t kMostTensors = 16;
constexpr int64_t kMostDims = 8;
constexpr int64_t kOfEach = 3 + kMostDims;
constexpr int64_t kHeader = 1 + static_cast<int64_t>(kMostTensors) * kOfEach;

at::Tensor header_of(const std::vector<at::Tensor>& tensors, const std::string& label) {
  const auto refuse = [&](const std::string& what, const std::string& fix) {
    throw Error(ErrorKind::kUsage, {what, label, fix});
  };
  if (tensors.size() > kMostTensors) {
    refuse(fmt::format("{} tensors are handed on", tensors.size()), fmt::format("hand on {} at most", kMostTensors));
  }
  std::vector<int64_t> header{static_cast<int64_t>(tensors.size())};
  for (const at::Tensor& tensor : tensors) {
    if (tensor.dim() > kMostDims) {
      refuse(fmt::format("a tensor of {} dimensions is handed on", tensor.dim()),
             fmt::format("use {} at most", kMostDims));
    }
    header.insert(header.end(),
                  {static_cast<int64_t>(tensor.scalar_type()), tensor.requires_grad() ? 1 : 0, tensor.dim()});
    header.insert(header.end(), tensor.sizes().begin(), tensor.sizes().end());
    header.resize(header.size() + static_cast<size_t>(kMostDims - tensor.dim()), 0);
  }
  header.resize(kHeader, 0);
  return at::tensor(header, at::kLong);
}

std::string part_of(const std::string& label, size_t number, size_t count) {
  return count == 1 ? label : fmt::format("{}, tensor {} of {}", label, number + 1, count);
}

// Cut off from what made it.
std::vector<at::Tensor> handed_on(const std::vector<at::Tensor>& leaving) {
  std::vector<at::Tensor> data;
  for (const at::Tensor& tensor : leaving) {
    data.push_back(tensor.detach().contiguous().requires_grad_(tensor.requires_grad()));
  }
  return data;
}

std::vector<at::Tensor> with_gradient(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> found;
  std::copy_if(tensors.begin(), tensors.end(), std::back_inserter(found),
               [](const at::Tensor& tensor) { return tensor.requires_grad(); });
  return found;
}

std::string output_of(const StagePass& pass) {
  return fmt::format("the output of stage {}, micro batch {}", pass.stage, pass.micro_batch);
}

std::string gradient_of(const StagePass& pass) {
  return fmt::format("the gradient of stage {}'s output, micro batch {}", pass.stage, pass.micro_batch);
}

// Also where a step that is too short for the schedule runs another order: weights go one way in all of them.
bool splits_backward(const pipeline::Schedule& schedule) {
  return pipeline::schedules().find(schedule.name, "the pipeline").make.splits_backward;
}

}  // namespace

// What this rank has sent, and who has not read it yet. A message from a rank tells that it has done all that stands
// before in its schedule, and so has read what that needed: nobody waits for that again.
struct PipelineRun::Messages {
  explicit Messages(comm::Group& group) : axis(group) {}

  // `read_by`: the place, in the schedule of `to`, of the action that needs it.
  void send(at::Tensor tensor, int to, size_t read_by, const std::string& label) {
    sent[to].push_back({read_by, axis.start_send(std::move(tensor), to, label)});
  }

  void send_with_shapes(const std::vector<at::Tensor>& tensors, int to, size_t read_by, const std::string& label) {
    send(header_of(tensors, label), to, read_by, "shape of " + label);
    send_all(tensors, to, read_by, label);
  }

  void send_all(const std::vector<at::Tensor>& tensors, int to, size_t read_by, const std::string& label) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      send(tensors[i].detach(), to, read_by, part_of(label, i, tensors.size()));
    }
  }

  // Whatever stands before `done` in the schedule of `rank` is done.
  void settle(int rank, size_t done) {
    auto& waiting = sent[rank];
    for (auto it = waiting.begin(); it != waiting.end();) {
      if (it->read_by >= done) {
        ++it;
        continue;
      }
      it->collective.finish();
      it = waiting.erase(it);
    }
  }

  void settle_all() {
    for (auto& [rank, waiting] : sent) {
      for (Sent& each : waiting) each.collective.finish();
      waiting.clear();
    }
  }

  struct Sent {
    size_t read_by;
    comm::Collective collective;
  };
  comm::Group& axis;
  std::map<int, std::deque<Sent>> sent;  // by whom it is for
};

// The passes of one step on this rank.
class PipelineRun::Step {
 public:
  Step(PipelineRun& run, const pipeline::Schedule& schedule, const RunStage& run_stage)
      : run_(run),
        schedule_(schedule),
        run_stage_(run_stage),
        rank_(run.axis_->rank()),
        splits_(splits_backward(schedule)) {
    for (const auto& actions : schedule.actions) {
      places_.emplace_back();
      for (size_t place = 0; place < actions.size(); ++place) {
        const Action& action = actions[place];
        if (action.work == Work::kBackwardWeights) continue;  // nobody waits for it
        const bool is_forward = action.work == Work::kForward;
        places_.back()[{is_forward, action.stage, action.micro_batch}] = place;
      }
    }
  }

  void take() {
    const auto& actions = schedule_.actions[static_cast<size_t>(rank_)];
    const int lowest = schedule_.stages_of(rank_).front();
    int ended = 0;  // micro batches, of which the caller takes the last one's step
    for (const Action& action : actions) {
      if (action.work == Work::kForward) {
        forward(action);
        continue;
      }
      const bool is_last = &action == &actions.back();
      run_.engine_.set_gradient_accumulation_boundary(is_last);
      if (action.work == Work::kBackwardWeights) {
        backward_weights(action);
      } else {
        backward(action);
      }
      const bool ends_micro_batch = action.stage == lowest && action.work != Work::kBackwardInput;
      if (ends_micro_batch && ++ended < schedule_.micro_batches) run_.engine_.step();
    }
    run_.messages_->settle_all();
  }

 private:
  struct Kept {
    std::vector<at::Tensor> entering, leaving;
  };
  using Key = std::pair<int, int>;  // stage, micro batch

  int rank_of(int stage) const { return schedule_.rank_of_stage[static_cast<size_t>(stage)]; }
  bool is_here(int stage) const { return rank_of(stage) == rank_; }
  size_t place_of(bool is_forward, int stage, int micro) const {
    return places_[static_cast<size_t>(rank_of(stage))].at({is_forward, stage, micro});
  }

  void forward(const Action& action) {
    StagePass pass{.stage = action.stage, .micro_batch = action.micro_batch};
    if (pass.stage > 0) pass.entering = entering(pass);
    const Key key{pass.stage, pass.micro_batch};
    std::vector<at::Tensor> leaving = put_off(key, [&] { return run_stage_(pass); });
    if (!run_.is_last(pass.stage)) {
      std::vector<at::Tensor> data = handed_on(leaving);
      const int next = pass.stage + 1;
      if (is_here(next)) {
        handed_[key] = std::move(data);
      } else {
        const size_t reader = place_of(true, next, pass.micro_batch);
        run_.messages_->send_with_shapes(data, rank_of(next), reader, output_of(pass));
      }
    }
    kept_[key] = {.entering = pass.entering, .leaving = std::move(leaving)};
  }

  std::vector<at::Tensor> entering(const StagePass& pass) {
    const StagePass before{.stage = pass.stage - 1, .micro_batch = pass.micro_batch};
    if (is_here(before.stage)) return take_from(handed_, {before.stage, before.micro_batch});
    const int from = rank_of(before.stage);
    std::vector<at::Tensor> tensors = run_.receive(from, output_of(before));
    run_.messages_->settle(from, place_of(true, before.stage, before.micro_batch));
    return tensors;
  }

  void backward(const Action& action) {
    const StagePass pass{.stage = action.stage, .micro_batch = action.micro_batch};
    const Key key{pass.stage, pass.micro_batch};
    Kept kept = take_from(kept_, key);
    if (run_.is_last(pass.stage)) {
      put_off(key, [&] { run_.engine_.backward(kept.leaving.front(), {.puts_off_weights = splits_}); });
    } else {
      const std::vector<at::Tensor> outputs = with_gradient(kept.leaving), gradients = gradients_for(pass, outputs);
      put_off(key, [&] { run_.engine_.backward_from(outputs, gradients, splits_); });
    }
    kept.leaving.clear();
    send_back(pass, kept.entering);
    if (splits_ && action.work == Work::kBackward) backward_weights(action);
  }

  // The rest of backward() where the schedule splits it.
  void backward_weights(const Action& action) {
    nn::DeferredWeights weights = take_from(weights_, {action.stage, action.micro_batch});
    run_.engine_.backward_weights(weights);
  }

  // Runs a pass whose weights' gradients wait, where the schedule splits backwards.
  template <class Pass>
  std::invoke_result_t<const Pass&> put_off(const Key& key, const Pass& pass) {
    if (!splits_) return pass();
    const nn::DeferredWeights::Scope scope(weights_[key]);
    return pass();
  }

  void send_back(const StagePass& pass, const std::vector<at::Tensor>& entering) {
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& tensor : with_gradient(entering)) {
      gradients.push_back(tensor.grad().defined() ? tensor.grad().contiguous() : at::zeros_like(tensor));
    }
    if (gradients.empty()) return;
    const StagePass before{.stage = pass.stage - 1, .micro_batch = pass.micro_batch};
    if (is_here(before.stage)) {
      gradients_[{before.stage, before.micro_batch}] = std::move(gradients);
    } else {
      run_.messages_->send_all(gradients, rank_of(before.stage), place_of(false, before.stage, before.micro_batch),
                               gradient_of(before));
    }
  }

  std::vector<at::Tensor> gradients_for(const StagePass& pass, const std::vector<at::Tensor>& outputs) {
    if (outputs.empty()) return {};
    const int next = pass.stage + 1, from = rank_of(next);
    if (is_here(next)) return take_from(gradients_, {pass.stage, pass.micro_batch});
    std::vector<at::Tensor> gradients;
    for (size_t i = 0; i < outputs.size(); ++i) {
      gradients.push_back(at::empty(outputs[i].sizes(), outputs[i].options().requires_grad(false)));
      run_.axis_->start_receive(gradients[i], from, part_of(gradient_of(pass), i, outputs.size())).finish();
    }
    run_.messages_->settle(from, place_of(false, next, pass.micro_batch));
    return gradients;
  }

  template <class Value>
  static Value take_from(std::map<Key, Value>& values, const Key& key) {
    auto node = values.extract(key);
    TESSERA_INVARIANT(!node.empty());
    return std::move(node.mapped());
  }

  PipelineRun& run_;
  const pipeline::Schedule& schedule_;
  const RunStage& run_stage_;
  int rank_;
  std::vector<std::map<std::tuple<bool, int, int>, size_t>> places_;  // of each rank's forwards and backwards
  std::map<Key, Kept> kept_;                                          // whose backward has not run
  bool splits_;                                                       // backwards into inputs and weights
  std::map<Key, nn::DeferredWeights> weights_;                        // … those that wait
  std::map<Key, std::vector<at::Tensor>> handed_, gradients_;         // from a stage of this rank to the next, and back
};

PipelineRun::PipelineRun(Engine& engine, comm::Mesh& mesh, const std::string& schedule, int stages_per_rank)
    : engine_(engine), axis_(mesh.group({layout::kPipelineAxis})), messages_(std::make_unique<Messages>(*axis_)) {
  std::vector<std::string> axes = mesh.shape().data_axes();
  axes.insert(axes.begin(), layout::kPipelineAxis);
  ranks_of_losses_ = mesh.group(axes);
  const auto micro_batches = static_cast<int>(engine.gradient_accumulation_steps());
  pipeline::Schedule first = pipeline::make_schedule(
      schedule, {.ranks = axis_->size(), .micro_batches = micro_batches, .stages_per_rank = stages_per_rank});
  rank_of_stage_ = first.rank_of_stage;
  if (splits_backward(first) && engine.config().dtypes.autocast) {
    throw Error(ErrorKind::kConfig,
                {fmt::format("the pipeline schedule {} does not go with torch_autocast", first.name), "the pipeline",
                 "use 1f1b or interleaved, or bf16 instead of torch_autocast"});
  }
  whole_step_ = &schedules_.emplace(micro_batches, std::move(first)).first->second;
}

PipelineRun::~PipelineRun() = default;

const pipeline::Schedule& PipelineRun::schedule_of(int micro_batches) {
  auto found = schedules_.find(micro_batches);
  if (found == schedules_.end()) {
    found = schedules_.emplace(micro_batches, with_micro_batches(*whole_step_, micro_batches)).first;
  }
  return found->second;
}

std::vector<at::Tensor> PipelineRun::receive(int from, const std::string& label) {
  const at::Tensor header = at::empty({kHeader}, at::kLong);
  axis_->start_receive(header, from, "shape of " + label).finish();
  const auto* const values = header.const_data_ptr<int64_t>();
  const auto count = static_cast<size_t>(values[0]);
  TESSERA_INVARIANT(count <= kMostTensors);
  std::vector<at::Tensor> tensors;
  for (size_t i = 0; i < count; ++i) {
    const int64_t* const of_each = values + 1 + static_cast<int64_t>(i) * kOfEach;
    TESSERA_INVARIANT(of_each[2] >= 0 && of_each[2] <= kMostDims);
    const at::IntArrayRef sizes(of_each + 3, static_cast<size_t>(of_each[2]));
    const auto dtype = static_cast<at::ScalarType>(of_each[0]);
    tensors.push_back(at::empty(sizes, at::TensorOptions(engine_.device()).dtype(dtype)));
    axis_->start_receive(tensors[i], from, part_of(label, i, count)).finish();
    if (at::GradMode::is_enabled()) tensors[i].requires_grad_(of_each[1] != 0);
  }
  return tensors;
}

void PipelineRun::train(int micro_batches, const RunStage& run_stage) {
  Step(*this, schedule_of(micro_batches), run_stage).take();
}

void PipelineRun::evaluate(int micro_batches, const RunStage& run_stage) {
  const at::NoGradGuard no_grad;
  for (int micro = 0; micro < micro_batches; ++micro) evaluate_one(micro, run_stage);
  messages_->settle_all();
}

void PipelineRun::evaluate_one(int micro_batch, const RunStage& run_stage) {
  const auto rank_of = [this](int stage) { return rank_of_stage_[static_cast<size_t>(stage)]; };
  const auto is_here = [&](int stage) { return rank_of(stage) == axis_->rank(); };
  std::vector<at::Tensor> handed;  // from a stage of this rank to the next
  for (int stage = 0; stage < static_cast<int>(rank_of_stage_.size()); ++stage) {
    if (!is_here(stage)) continue;
    StagePass pass{.stage = stage, .micro_batch = micro_batch};
    if (stage > 0) {
      const StagePass before{.stage = stage - 1, .micro_batch = micro_batch};
      pass.entering = is_here(before.stage) ? std::move(handed) : receive(rank_of(before.stage), output_of(before));
    }
    std::vector<at::Tensor> leaving = run_stage(pass);
    if (is_last(stage)) return;
    if (is_here(stage + 1)) {
      handed = std::move(leaving);
    } else {
      // Those after this rank may be behind; no more than two micro batches wait for them.
      messages_->settle(rank_of(stage + 1), micro_batch < 2 ? 0 : static_cast<size_t>(micro_batch) - 1);
      messages_->send_with_shapes(handed_on(leaving), rank_of(stage + 1), static_cast<size_t>(micro_batch),
                                  output_of(pass));
    }
  }
}

}  // namespace tessera::engine
