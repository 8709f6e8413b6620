// Where accumulations of micro batches begin and end. The arithmetic of it is in averaging_test.cpp.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "tessera/config/ds_config.h"
#include "tessera/engine/engine.h"
#include "tests/engine/toy_models.h"
#include "tests/support/temporary_folder.h"

namespace tessera::accumulation_test {
namespace {

using nlohmann::json;

class Net : public torch::nn::Module {
 public:
  Net() { blocks_ = register_module("blocks", std::make_shared<test::ThreeBlocks>()); }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = x;
    for (const auto& block : blocks_->blocks) y = (*block)(y);
    return test::mean_square(y);
  }

 private:
  std::shared_ptr<test::ThreeBlocks> blocks_;
};

config::DsConfig accumulating(int64_t micro_batches) {
  const json config = {{"train_micro_batch_size_per_gpu", 2},
                       {"gradient_accumulation_steps", micro_batches},
                       {"zero_optimization", {{"stage", 2}}},
                       {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 0.01}}}}}};
  return config::parse_ds_config(config, "the test", {.data_parallel_size = 1});
}

auto engine_of(int64_t micro_batches) { return initialize(std::make_shared<Net>(), accumulating(micro_batches)); }

// Of each micro batch, whether it was an accumulation's last.
template <class Engine>
std::vector<bool> train(Engine& engine, int micro_batches) {
  std::vector<bool> ends;
  for (int i = 0; i < micro_batches; ++i) {
    ends.push_back(engine.is_gradient_accumulation_boundary());
    engine.backward(engine.forward(test::Block::values({4, test::kWidth}, i)));
    engine.step();
  }
  return ends;
}

// As where a run with the same global batch goes on over fewer ranks: three steps of two are no multiple of four.
TEST(Accumulation, BeginsAnewWhereAStateOfAnotherLengthIsLoaded) {
  const test::TemporaryFolder folder;
  const auto first = engine_of(2);
  EXPECT_EQ(train(*first, 6), (std::vector<bool>{false, true, false, true, false, true}));
  first->save_checkpoint(folder.path());
  const auto second = engine_of(4);
  second->load_checkpoint(folder.path());
  EXPECT_EQ(second->micro_steps(), 6);
  EXPECT_EQ(train(*second, 4), (std::vector<bool>{false, false, false, true}));
  EXPECT_EQ(second->global_steps(), 4);
  second->save_checkpoint(folder.path());
}

TEST(Accumulation, OfAnotherLengthBeginsWhereTheOneBeforeEnded) {
  const auto engine = engine_of(2);
  EXPECT_EQ(train(*engine, 2), (std::vector<bool>{false, true}));
  engine->set_batch({.global = 6, .micro = 2, .accumulation = 3});
  EXPECT_EQ(train(*engine, 4), (std::vector<bool>{false, false, true, false}));
}

// What was accumulated already counts.
TEST(Accumulation, ThatIsUnderWayMayBecomeLonger) {
  const auto engine = engine_of(2);
  EXPECT_EQ(train(*engine, 3), (std::vector<bool>{false, true, false}));
  engine->set_batch({.global = 6, .micro = 2, .accumulation = 3});
  EXPECT_EQ(train(*engine, 2), (std::vector<bool>{false, true}));
}

}  // namespace
}  // namespace tessera::accumulation_test
