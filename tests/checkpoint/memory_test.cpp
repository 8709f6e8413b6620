// A load takes little more memory than what it fills: no rank ever holds a tensor of the file, let alone the model.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tessera/base/host_memory.h"
#include "tessera/zero/sharded_model.h"
#include "tests/engine/checkpoint_runs.h"
#include "tests/support/spawn_ranks.h"
#include "tests/support/temporary_folder.h"

namespace tessera::memory_test {
namespace {

constexpr int64_t kMiB = 1 << 20;

// 1.5 M parameters each.
class Wide : public nn::UnitModule<Wide> {
 public:
  Wide() { weight = register_parameter("weight", at::full({test::kWidth, 1 << 17}, 0.01)); }
  at::Tensor forward(const at::Tensor& x) { return x * at::matmul(x, weight).mean(); }
  at::Tensor weight;
};

class Stack : public test::ToyModel {
 public:
  Stack() {
    for (int i = 0; i < 16; ++i)
      layers.push_back(register_module("layer" + std::to_string(i), std::make_shared<Wide>()));
  }
  at::Tensor loss(const test::ToyInput& input) override {
    at::Tensor x = input.x;
    for (const auto& layer : layers) x = (*layer)(x);
    return test::mean_square(x);
  }
  std::vector<std::shared_ptr<Wide>> layers;
};

int64_t status_bytes(const std::string& key) {  // "VmHWM:", "VmRSS:"
  return static_cast<int64_t>(number_after("/proc/self/status", key) * 1024);
}

TEST(CheckpointMemory, OfALoadIsATenthOfTheShardAnd64MiBAtMost) {
  const test::TemporaryFolder folder;
  for (const auto& [save_ranks, load_ranks] : {std::pair{2, 2}, {2, 3}}) {
    test::spawn_ranks(save_ranks, [&](const auto& world) {
      const auto engine = initialize(std::make_shared<Stack>(), test::config_of(3, world->size()), {.world = world});
      test::take_steps(*engine, 1);
      engine->save_checkpoint(folder.path());
    });
    test::spawn_ranks(load_ranks, [&](const auto& world) {
      const auto engine = initialize(std::make_shared<Stack>(), test::config_of(2, world->size()), {.world = world});
      test::take_steps(*engine, 1);  // touches all that the load fills
      std::ofstream reset("/proc/self/clear_refs");
      reset << "5\n" << std::flush;
      if (!reset) GTEST_SKIP() << "the kernel does not let the peak of memory be set back";
      const int64_t before = status_bytes("VmRSS:");
      engine->load_checkpoint(folder.path());
      const int64_t extra = status_bytes("VmHWM:") - before;
      int64_t shard = 0;
      for (const auto& unit : engine->sharded_model().units()) shard += unit->owned().numel() * 12;
      EXPECT_GT(shard, 90 * kMiB);
      EXPECT_LE(extra, shard / 10 + 64 * kMiB) << shard;
    });
  }
}

}  // namespace
}  // namespace tessera::memory_test
