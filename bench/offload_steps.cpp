// Our side of bench/offload --only steps: a stack of 8 units of 12.6 M parameters each, bf16 with fp32 master weights
// and AdamW, ZeRO stage 2 on one rank, trained in one process by three engines that differ in where the optimizer's
// state and the gradients rest.
//
//   offload_steps FOLDER ROWS
//
// Says what it trains; then for each line on stdin takes a training step on ROWS rows, and prints the seconds of
// forward and backward, and those of the optimizer's step:
//   memory   the state in memory
//   cpu      the state offloaded to the CPU
//   nvme     the state in a file in FOLDER, read ahead and written behind
//   io       no forward and no update: the tiles of nvme's state are read and written as its step does it
#include <ATen/ATen.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <iostream>
#include <map>
#include <string>

#include "tessera/base/allocator.h"
#include "tessera/config/ds_config.h"
#include "tessera/engine/engine.h"
#include "tessera/nn/layers.h"
#include "tessera/storage/cpu_allocator.h"
#include "tessera/zero/state_tiles.h"

namespace {

using namespace tessera;
using nlohmann::json;

constexpr int64_t kUnits = 8, kLayersAUnit = 3, kWidth = 2048;

class Block : public nn::UnitModule<Block> {
 public:
  Block() {
    for (int64_t i = 0; i < kLayersAUnit; ++i) {
      layers_.push_back(register_module("layer" + std::to_string(i), std::make_shared<nn::Linear>(kWidth, kWidth)));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (const auto& layer : layers_) x = at::tanh(layer->forward(x));
    return x;
  }

 private:
  std::vector<std::shared_ptr<nn::Linear>> layers_;
};

class Stack : public torch::nn::Module {
 public:
  Stack() {
    for (int64_t i = 0; i < kUnits; ++i) {
      blocks_.push_back(register_module("block" + std::to_string(i), std::make_shared<Block>()));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (const auto& block : blocks_) x = (*block)(x);
    return x.to(at::kFloat).square().mean();
  }

 private:
  std::vector<std::shared_ptr<Block>> blocks_;
};

using StackEngine = ModelEngine<Stack>;

std::unique_ptr<StackEngine> make_engine(const json& offload) {
  const json config = {{"train_micro_batch_size_per_gpu", 1},
                       {"bf16", {{"enabled", true}}},
                       {"gradient_clipping", 1.0},
                       {"zero_optimization", {{"stage", 2}, {"offload_optimizer", offload}}},
                       {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 1e-4}}}}}};
  return initialize(
      std::make_shared<Stack>(), config::parse_ds_config(config, "bench/offload", {}),
      {.world = comm::Group::alone(), .fill = [](const std::string&, at::Tensor value) { value.normal_(0, 0.02); }});
}

double seconds(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void train(StackEngine& engine, const at::Tensor& rows) {
  const double passes = seconds([&] { engine.backward(engine.forward(rows)); });
  const double update = seconds([&] { engine.step(); });
  std::printf("%.6f %.6f\n", passes, update);
}

void move_tiles(StackEngine& engine) {
  const double moving = seconds([&] {
    for (zero::StateTiles tiles(engine.sharded_model(), /*cuts=*/true); tiles.next();) tiles.put_back();
  });
  std::printf("0 %.6f\n", moving);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  keep_freed_memory();
  storage::use_reusing_cpu_allocator();
  const at::Tensor rows = at::randn({std::stoll(argv[2]), kWidth}).to(at::kBFloat16);
  const auto memory = make_engine({{"device", "none"}});
  const auto cpu = make_engine({{"device", "cpu"}});
  const auto nvme =
      make_engine({{"device", "nvme"}, {"nvme_path", argv[1]}, {"pipeline_read", true}, {"pipeline_write", true}});
  std::printf("%.1f M parameters\n", static_cast<double>(memory->sharded_model().param_count()) / 1e6);
  std::fflush(stdout);
  const std::map<std::string, std::function<void()>> cases = {{"memory", [&] { train(*memory, rows); }},
                                                              {"cpu", [&] { train(*cpu, rows); }},
                                                              {"nvme", [&] { train(*nvme, rows); }},
                                                              {"io", [&] { move_tiles(*nvme); }}};
  for (std::string name; std::getline(std::cin, name); std::fflush(stdout)) cases.at(name)();
  return 0;
}
