// Runs a schedule (pipeline/schedule.h) on this rank: the passes of its stages, and the messages between them.
//
//   engine::PipelineRun run(engine, mesh, "1f1b", stages);
//   run.train(count, [&](const StagePass& pass) { … });   // forwards and backwards of a step's micro batches
//   engine.step();
//
// What leaves a stage is up to 16 tensors of any shape, which say their shapes themselves, so micro batches may differ.
// Those of floating point have gradients, where they depend on what is trained. Collective
// over the ranks of the pipeline; errors of a message name both ranks, the stage and the micro batch. One thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tessera/comm/mesh.h"
#include "tessera/engine/options.h"
#include "tessera/pipeline/schedule.h"

namespace tessera {
class Engine;
}

namespace tessera::engine {

// -> what the next stage goes on from; of the last one the loss alone, a scalar, of which Engine::backward begins.
using RunStage = std::function<std::vector<at::Tensor>(const StagePass& pass)>;

class PipelineRun {
 public:
  // Over the mesh's axis pp. Borrows the engine. ErrorKind::kConfig: as make_schedule.
  PipelineRun(Engine& engine, comm::Mesh& mesh, const std::string& schedule, int stages_per_rank = 0);
  ~PipelineRun();

  // All forwards and backwards of a step of so many micro batches, at least one; Engine::step() of all but the last,
  // which the caller takes.
  void train(int micro_batches, const RunStage& run_stage);

  // The forwards of so many micro batches alone, which keep nothing for backward.
  void evaluate(int micro_batches, const RunStage& run_stage);

  // Of a step of gradient_accumulation_steps micro batches.
  const pipeline::Schedule& schedule() const { return *whole_step_; }

  bool is_last(int stage) const { return stage + 1 == static_cast<int>(rank_of_stage_.size()); }

  // The ranks over which the losses of different data add up; only those that have the last stage have any.
  comm::Group& ranks_of_losses() { return *ranks_of_losses_; }

 private:
  class Step;
  struct Messages;

  const pipeline::Schedule& schedule_of(int micro_batches);
  std::vector<at::Tensor> receive(int from, const std::string& label);
  void evaluate_one(int micro_batch, const RunStage& run_stage);

  Engine& engine_;
  std::shared_ptr<comm::Group> axis_, ranks_of_losses_;
  std::map<int, pipeline::Schedule> schedules_;  // by their number of micro batches
  const pipeline::Schedule* whole_step_;         // one of them
  std::vector<int> rank_of_stage_;               // of all of them
  std::unique_ptr<Messages> messages_;
};

}  // namespace tessera::engine
