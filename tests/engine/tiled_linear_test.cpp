// Tiles train as the layer that they make up, and at stage 3 only one of them is gathered.
#include <gtest/gtest.h>

#include "tessera/nn/layers.h"
#include "tests/engine/checkpoint_runs.h"
#include "tests/support/live_bytes.h"
#include "tests/support/spawn_ranks.h"

namespace tessera::tiled_linear_test {
namespace {

constexpr int64_t kHidden = 1024;
constexpr int64_t kWeightBytes = kHidden * kHidden * 4;

class Wide : public test::ToyModel {
 public:
  explicit Wide(int64_t splits) {
    const auto fill = [](const std::string&, const at::Tensor& value) {
      value.copy_(test::Block::values(value.sizes().vec(), 3) * 0.1);
    };
    nn::Linear whole(kHidden, kHidden);
    nn::materialize(whole, fill);
    layer = register_module(
        "layer", std::make_shared<nn::TiledLinear>(kHidden, kHidden, nn::TiledLinearOptions{.out_splits = splits}));
    layer->copy_params_from(whole);
  }
  at::Tensor loss(const test::ToyInput& input) override {
    const at::Tensor wide = input.x.repeat({1, kHidden / test::kWidth + 1}).narrow(1, 0, kHidden);
    return test::mean_square(at::tanh(layer->forward(wide)));
  }
  std::shared_ptr<nn::TiledLinear> layer;
};

struct Outcome {
  std::vector<double> losses;
  int64_t peak = 0;  // of what forward and backward allocate
};

Outcome outcome_of(int64_t splits, const std::shared_ptr<comm::Group>& world) {
  const auto engine = initialize(std::make_shared<Wide>(splits), test::config_of(3, world->size()), {.world = world});
  Outcome run{.losses = test::take_steps(*engine, 3)};
  const auto bytes = std::make_shared<test::LiveBytes>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, bytes);
  engine->call([](Wide& model, const test::ToyInput& input) { return model.loss(input); }, test::share_of(0, *world));
  run.peak = bytes->peak;
  return run;
}

// Forward gathers the layer's 4 MiB as a whole, or an eighth of them at a time; with the layer's input and output, of
// six rows each, far below that.
TEST(TiledLinear, AtStage3GathersOneTileAtATime) {
  test::spawn_ranks(2, [](const auto& world) {
    const Outcome whole = outcome_of(1, world), tiled = outcome_of(8, world);
    EXPECT_GE(whole.peak, kWeightBytes);
    EXPECT_LE(tiled.peak, kWeightBytes / 8 + kWeightBytes / 8);
    for (size_t step = 0; step < whole.losses.size(); ++step) {
      EXPECT_NEAR(tiled.losses[step], whole.losses[step], 1e-6 * std::abs(whole.losses[step]));
    }
  });
}

}  // namespace
}  // namespace tessera::tiled_linear_test
