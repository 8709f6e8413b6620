// One rank of bench/parallel: `parallel_ranks OPTIONS`, as parallel_ranks.py, with RANK, WORLD_SIZE, … as a launcher
// sets them.
//
// OPTIONS is JSON: "model" (a folder), "precision" (fp32 or bf16), "tokens" (a file of int64,
// micro_batch x length), "micro_batch", "length". The ranks share one model and train on the same tokens. Takes a step
// at once and one more for each line on stdin; answers with the seconds and the loss.
#include <ATen/ATen.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>

#include "bench/causal_training.h"
#include "tessera/base/allocator.h"
#include "tessera/comm/group.h"
#include "tessera/comm/mesh.h"
#include "tessera/models/initial_values.h"
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

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  keep_freed_memory();
  storage::use_reusing_cpu_allocator();
  const json options = json::parse(argv[1]);
  const auto world = comm::init_distributed();
  const auto mesh = std::make_shared<comm::Mesh>(
      world, layout::MeshShape({{layout::kShardAxis, 1}, {layout::kTensorAxis, world->size()}}));
  const auto model = models::read_model(options["model"], "CausalLM").model;
  const auto network = model->network_over(nn::TensorAxis(mesh->group({layout::kTensorAxis})));
  models::InitialValues values(*model, *network, options["model"], /*seed=*/42);
  const auto step = causal_trainer(
      network, read_tokens(options["tokens"], options["micro_batch"], options["length"]), options["precision"],
      {.mesh = mesh, .fill = [&](const std::string& name, at::Tensor value) { values.fill(name, value); }});
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
