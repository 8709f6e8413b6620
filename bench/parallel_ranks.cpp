// One rank of bench/parallel: `parallel_ranks OPTIONS`, as parallel_ranks.py, with RANK, WORLD_SIZE, … as a launcher
// sets them.
//
// OPTIONS is JSON: "model" (a folder), "precision" (fp32 or bf16), "tokens" (a file of int64, batch x length), "batch",
// "length". The ranks share one model and train on the same tokens: over a tensor axis, with "schedule" and
// "micro_batches" over a pipeline, or with "context" (ring or ulysses) over the tokens of each row. Takes a step at
// once and one more for each line on stdin; answers with the seconds and the loss.
//
// `parallel_ranks bounds MODEL RANKS` prints models::StageBounds::bounds of a pipeline of one stage a rank.
#include <ATen/ATen.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "bench/causal_training.h"
#include "tessera/base/allocator.h"
#include "tessera/comm/group.h"
#include "tessera/comm/mesh.h"
#include "tessera/engine/pipeline_run.h"
#include "tessera/models/initial_values.h"
#include "tessera/models/stages.h"
#include "tessera/nn/context_axis.h"
#include "tessera/nn/tensor_axis.h"
#include "tessera/storage/cpu_allocator.h"

using namespace tessera;
using nlohmann::json;

namespace {

at::Tensor read_tokens(const std::string& path, int64_t rows, int64_t length) {
  const at::Tensor ids = at::empty({rows, length}, at::kLong);
  std::ifstream(path, std::ios::binary).read(static_cast<char*>(ids.data_ptr()), static_cast<int64_t>(ids.nbytes()));
  return ids;
}

std::function<double()> over_tensor_ranks(const models::Model& model, const json& options, const at::Tensor& ids,
                                          const std::shared_ptr<comm::Group>& world) {
  const auto mesh = std::make_shared<comm::Mesh>(
      world, layout::MeshShape({{layout::kShardAxis, 1}, {layout::kTensorAxis, world->size()}}));
  const auto network = model.network_over(nn::TensorAxis(mesh->group({layout::kTensorAxis})));
  models::InitialValues values(model, *network, options["model"], /*seed=*/42);
  return causal_trainer(
      network, ids, options["precision"],
      {.mesh = mesh, .fill = [&](const std::string& name, at::Tensor value) { values.fill(name, value); }});
}

std::function<double()> over_shared_rows(const models::Model& model, const json& options, const at::Tensor& ids,
                                         const std::shared_ptr<comm::Group>& world) {
  const auto mesh = std::make_shared<comm::Mesh>(
      world, layout::MeshShape({{layout::kShardAxis, 1}, {layout::kContextAxis, world->size()}}));
  const auto sharers = mesh->group({layout::kContextAxis});
  const auto network = model.network();
  const bool ring = options["context"] == "ring";
  network->share_sequences({sharers, ring ? nn::ContextAttention::kRing : nn::ContextAttention::kUlysses});
  models::InitialValues values(model, *network, options["model"], /*seed=*/42);
  return causal_trainer(
      network, ids, options["precision"],
      {.mesh = mesh, .fill = [&](const std::string& name, at::Tensor value) { values.fill(name, value); }}, sharers);
}

std::function<double()> over_a_pipeline(const models::Model& model, const json& options, const at::Tensor& ids,
                                        const std::shared_ptr<comm::Group>& world) {
  const int ranks = world->size(), micro_batches = options["micro_batches"];
  const auto mesh =
      std::make_shared<comm::Mesh>(world, layout::MeshShape({{layout::kPipelineAxis, ranks}, {layout::kShardAxis, 1}}));
  const auto network = model.network();
  models::InitialValues values(model, *network, options["model"], /*seed=*/42);
  const std::string name = options["schedule"];
  const models::StageBounds stages = models::balanced_stages(
      *network, pipeline::make_schedule(name, {.ranks = ranks, .micro_batches = micro_batches}));
  const auto engine =
      causal_engine(network, options["precision"], ids.size(0), micro_batches,
                    {.mesh = mesh,
                     .specify = models::keep_stages_of(world->rank(), *network, stages),
                     .fill = [&](const std::string& parameter, at::Tensor value) { values.fill(parameter, value); }});
  const auto run = std::make_shared<engine::PipelineRun>(*engine, *mesh, name);
  std::vector<models::NamedTensors> batches;
  for (const at::Tensor& part : ids.chunk(micro_batches)) batches.push_back(causal_batch(part));
  const int64_t targets = ids.size(0) * (ids.size(1) - 1);
  return [=] {
    at::Tensor loss = at::zeros({}, at::kDouble);
    run->train(micro_batches, [&](const engine::StagePass& pass) {
      std::vector<at::Tensor> leaving = engine->call(
          [&](models::Network& net, const std::vector<at::Tensor>& entering, const models::NamedTensors& in) {
            return models::run_stage(net, stages, pass.stage, entering, in);
          },
          pass.entering, batches[static_cast<size_t>(pass.micro_batch)]);
      if (!run->is_last(pass.stage)) return leaving;
      loss += leaving.front().detach() / targets;
      return std::vector{leaving.front() * (static_cast<double>(micro_batches) / static_cast<double>(targets))};
    });
    engine->step();
    run->ranks_of_losses().start_all_reduce(loss, 1, "loss").finish();
    return loss.item<double>();
  };
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 4 && std::string(argv[1]) == "bounds") {
    const auto network = models::read_model(argv[2], "CausalLM").model->network();
    const auto schedule = pipeline::make_schedule("1f1b", {.ranks = std::stoi(argv[3]), .micro_batches = 1});
    std::printf("%s\n", json(models::balanced_stages(*network, schedule).bounds).dump().c_str());
    return 0;
  }
  if (argc != 2) return 2;
  keep_freed_memory();
  storage::use_reusing_cpu_allocator();
  const json options = json::parse(argv[1]);
  const auto world = comm::init_distributed();
  const auto model = models::read_model(options["model"], "CausalLM").model;
  const at::Tensor ids = read_tokens(options["tokens"], options["batch"], options["length"]);
  const auto share = options.contains("schedule")  ? over_a_pipeline
                     : options.contains("context") ? over_shared_rows
                                                   : over_tensor_ranks;
  const auto step = share(*model, options, ids, world);
  std::string line;
  do {
    const auto begin = std::chrono::steady_clock::now();
    const double result = step();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    std::printf("%.6f %.9g\n", seconds.count(), result);
    std::fflush(stdout);
  } while (std::getline(std::cin, line));
  world->barrier("the end");
}
