// Our side of bench/models: `model_rate FOLDER OPTIONS`, as model_rate.py.
//
// OPTIONS is JSON: "work" (train or generate), "precision" (fp32 or bf16), "micro_batch", "length", "prompt" (tokens),
// "new_tokens", "seed". Works once at once, and once more for each line on stdin; answers with seconds and the loss, or
// the number of new tokens. Trains on one rank, which communicates with nobody, at stage 0.
#include <ATen/ATen.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <iostream>
#include <memory>
#include <string>

#include "bench/causal_training.h"
#include "tessera/base/allocator.h"
#include "tessera/comm/group.h"
#include "tessera/models/generation.h"
#include "tessera/models/initial_values.h"
#include "tessera/nn/layers.h"
#include "tessera/storage/cpu_allocator.h"

using namespace tessera;
using nlohmann::json;

namespace {

struct Model {
  std::unique_ptr<models::Model> model;
  std::shared_ptr<models::Network> network;
  std::unique_ptr<models::InitialValues> values;

  explicit Model(const std::string& folder)
      : model(models::read_model(folder, "CausalLM").model),
        network(model->network()),
        values(std::make_unique<models::InitialValues>(*model, *network, folder, /*seed=*/42)) {}

  std::function<void(const std::string& name, at::Tensor value)> fill() const {
    return [this](const std::string& name, at::Tensor value) { values->fill(name, std::move(value)); };
  }
};

at::Tensor random_tokens(const Model& model, at::IntArrayRef shape) {
  return at::randint(model.model->vocab_size(), shape, at::kLong);
}

// A step; returns its loss.
std::function<double()> trainer(const Model& model, const json& options) {
  const at::Tensor ids =
      random_tokens(model, {options["micro_batch"].get<int64_t>(), options["length"].get<int64_t>()});
  return causal_trainer(model.network, ids, options["precision"],
                        {.world = comm::Group::alone(), .fill = model.fill()});
}

// Returns the number of new tokens.
std::function<double()> generator(const Model& model, const json& options) {
  nn::materialize(*model.network, model.fill(), options["precision"] == "bf16" ? at::kBFloat16 : at::kFloat);
  model.network->eval();
  auto* const writer = dynamic_cast<models::GenerativeNetwork*>(model.network.get());
  const at::Tensor prompt = random_tokens(model, {options["prompt"].get<int64_t>()});
  const std::vector<int32_t> ids(prompt.data_ptr<int64_t>(), prompt.data_ptr<int64_t>() + prompt.numel());
  const models::GenerationOptions how{.max_new_tokens = options["new_tokens"]};
  return [writer, ids, how] { return static_cast<double>(models::generate(*writer, ids, how).size()); };
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  keep_freed_memory();
  storage::use_reusing_cpu_allocator();
  const json options = json::parse(argv[2]);
  at::manual_seed(options["seed"].get<uint64_t>());
  const Model model(argv[1]);
  const auto work = options["work"] == "train" ? trainer(model, options) : generator(model, options);
  std::string line;
  do {
    const auto begin = std::chrono::steady_clock::now();
    const double result = work();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    std::printf("%.6f %.9g\n", seconds.count(), result);
    std::fflush(stdout);
  } while (std::getline(std::cin, line));
  return 0;
}
