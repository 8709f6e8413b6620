// One rank of our side of bench/checkpoint: a model of 24 square layers and Adam's state after one step, saved and
// loaded.
//
//   checkpoint_ranks FOLDER STAGE [load]     with RANK, WORLD_SIZE, … as a launcher sets them
//
// Rank 0 prints a line "<what> <seconds>" for each measurement; the seconds are those of the slowest rank.
//   stop      how long training stands still for a save in the background, its buffer touched before
//   save      a save in the foreground, fsynced
//   load      from files that are not in the page cache, where the caches may be dropped (root)
//   cached    load once more, the files in the page cache
//   resident  bytes by which the peak of resident memory grew while loading
#include <ATen/ATen.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <string>

#include "tessera/base/host_memory.h"
#include "tessera/comm/rendezvous.h"
#include "tessera/config/ds_config.h"
#include "tessera/engine/engine.h"

namespace {

using namespace tessera;

constexpr int64_t kLayers = 24, kWidth = 2140;  // 110 M parameters

class Layer : public nn::UnitModule<Layer> {
 public:
  Layer() { weight = register_parameter("weight", at::randn({kWidth, kWidth}) * 0.02); }
  at::Tensor forward(const at::Tensor& x) { return at::tanh(at::matmul(x, weight)); }
  at::Tensor weight;
};

class Stack : public torch::nn::Module {
 public:
  Stack() {
    for (int64_t i = 0; i < kLayers; ++i) {
      layers.push_back(register_module("layer" + std::to_string(i), std::make_shared<Layer>()));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (const auto& layer : layers) x = (*layer)(x);
    return x.square().mean();
  }
  std::vector<std::shared_ptr<Layer>> layers;
};

// Of the slowest rank.
template <class Work>
double seconds(comm::Group& world, Work work) {
  world.barrier("begin");
  const auto begin = std::chrono::steady_clock::now();
  work();
  const double own = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  double slowest = 0;
  for (const std::string& text : world.exchange_texts(std::to_string(own), "seconds")) {
    slowest = std::max(slowest, std::stod(text));
  }
  return slowest;
}

int64_t status_bytes(const std::string& key) {  // "VmHWM:", "VmRSS:"
  return static_cast<int64_t>(number_after("/proc/self/status", key) * 1024);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const std::string folder = argv[1];
  const bool loads = argc > 3;
  const auto world = comm::init_distributed();
  const nlohmann::json json = {{"train_micro_batch_size_per_gpu", 1},
                               {"zero_optimization", {{"stage", std::stoi(argv[2])}}},
                               {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 1e-4}}}}}};
  const auto config = config::parse_ds_config(json, "bench/checkpoint", {.data_parallel_size = world->size()});
  const auto engine = initialize(std::make_shared<Stack>(), config, {.world = world});
  const auto say = [&](const char* what, double value) {
    if (world->rank() == 0) std::printf("%s %.4f\n", what, value);
    std::fflush(stdout);
  };
  const auto step = [&] {
    engine->backward(engine->forward(at::ones({1, kWidth}) * 0.1));
    engine->step();
  };
  step();
  if (loads) {
    sync();
    world->barrier("written");
    if (world->local_rank() == 0) std::ofstream("/proc/sys/vm/drop_caches") << "3\n";
    std::ofstream("/proc/self/clear_refs") << "5\n";  // the peak begins here
    const int64_t before = status_bytes("VmRSS:");
    say("load", seconds(*world, [&] { engine->load_checkpoint(folder); }));
    say("resident", static_cast<double>(status_bytes("VmHWM:") - before));
    say("cached", seconds(*world, [&] { engine->load_checkpoint(folder); }));
    return 0;
  }
  const auto in_background = [&] {
    engine->save_checkpoint(folder, "beside", nlohmann::json::object(), {.in_background = true});
  };
  in_background();
  engine->finish_saving();
  step();
  say("stop", seconds(*world, in_background));
  step();
  engine->finish_saving();
  say("save", seconds(*world, [&] { engine->save_checkpoint(folder, "at_once"); }));
  return 0;
}
