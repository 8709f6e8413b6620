// tessera.delayed_update against its definition, written out: the gradients of a step are taken at weights that have
// not seen the update of the step before. And tessera.lazy_publish, with which they have.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "tessera/base/error.h"
#include "tests/engine/checkpoint_runs.h"
#include "tests/support/spawn_ranks.h"
#include "tests/support/temporary_folder.h"

namespace tessera::delayed_update_test {
namespace {

using nlohmann::json;
using test::ThreeBlocks;
using testing::HasSubstr;

constexpr int kSteps = 6;
constexpr int kOverflow = 3;  // the step whose gradients are not finite
constexpr double kLr = 0.5;

json config_of(int stage, const json& own, const std::string& optimizer = "SGD") {
  return {{"train_micro_batch_size_per_gpu", 2},
          {"gradient_clipping", 0.0},
          {"bf16", {{"enabled", true}, {"check_grad_overflow", true}}},
          {"zero_optimization", {{"stage", stage}}},
          {"optimizer", {{"type", optimizer}, {"params", {{"lr", kLr}}}}},
          {"tessera", own}};
}

json delayed_after(int steps) { return {{"delayed_update", true}, {"delayed_update_after", steps}}; }

test::ToyInput input_of(int step, int rank) {
  at::Tensor x = at::cos(at::arange(2 * test::kWidth, at::kFloat) * 0.3 + (step * 7.0 + rank * 1.3));
  if (step == kOverflow) x[0] = std::numeric_limits<float>::quiet_NaN();
  return {.x = x.view({2, test::kWidth}).to(at::kBFloat16)};
}

std::shared_ptr<ModelEngine<ThreeBlocks>> engine_of(const json& config, const std::shared_ptr<comm::Group>& world) {
  return initialize(std::make_shared<ThreeBlocks>(),
                    config::parse_ds_config(config, "the test", {.data_parallel_size = world->size()}),
                    {.world = world});
}

void take_steps(ModelEngine<ThreeBlocks>& engine, int first, int end) {
  for (int step = first; step < end; ++step) {
    engine.backward(engine.call([](ThreeBlocks& model, const test::ToyInput& in) { return model.loss(in); },
                                input_of(step, engine.world().rank())));
    engine.step();
  }
}

std::vector<at::Tensor> trained_weights(const json& config, const std::shared_ptr<comm::Group>& world) {
  const auto engine = engine_of(config, world);
  take_steps(*engine, 0, kSteps);
  engine->finish_update();
  return test::weights_of(*engine);
}

// Plain gradient descent on fp32 weights, of which forward sees what was published last, in bf16.
std::vector<at::Tensor> reference_weights(int ranks, int delayed_after) {
  const auto model = std::make_shared<ThreeBlocks>();
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> master;
  for (const at::Tensor& parameter : model->parameters()) master.push_back(parameter.detach().clone());
  const auto publish = [&] {
    const auto parameters = model->parameters();
    for (size_t i = 0; i < master.size(); ++i) {
      const_cast<at::Tensor&>(parameters[i]).set_data(master[i].to(at::kBFloat16));
    }
  };
  const auto update = [&](const std::vector<at::Tensor>& grads) {
    for (size_t i = 0; i < master.size(); ++i) master[i] -= kLr * grads[i].to(at::kFloat);
    publish();
  };
  publish();
  std::optional<std::vector<at::Tensor>> waits;
  for (int step = 0, applied = 0; step < kSteps; ++step) {
    std::vector<at::Tensor> sums;
    for (int rank = 0; rank < ranks; ++rank) {
      const at::AutoGradMode with_grad(true);
      for (const at::Tensor& parameter : model->parameters()) parameter.mutable_grad() = at::Tensor();
      model->loss(input_of(step, rank)).backward();
      size_t i = 0;
      for (const at::Tensor& parameter : model->parameters()) {
        const at::Tensor grad = parameter.grad().to(at::kFloat);
        if (rank == 0)
          sums.push_back(grad);
        else
          sums[i] = sums[i] + grad;
        ++i;
      }
    }
    for (at::Tensor& sum : sums) sum = (sum / ranks).to(at::kBFloat16);
    if (waits) update(*std::exchange(waits, std::nullopt));
    if (step == kOverflow) continue;
    if (applied++ < delayed_after) {
      update(sums);
    } else {
      waits = sums;
    }
  }
  if (waits) update(*waits);
  std::vector<at::Tensor> weights;
  for (const at::Tensor& parameter : model->parameters()) weights.push_back(parameter.detach());
  return weights;
}

TEST(DelayedUpdate, IsTheFormulaAtEveryStage) {
  for (const int ranks : {1, 2}) {
    for (const int after : {0, 2}) {
      const std::vector<at::Tensor> want = reference_weights(ranks, after);
      test::spawn_ranks(ranks, [&](const auto& world) {
        for (const int stage : {0, 1, 2, 3}) {
          SCOPED_TRACE("stage " + std::to_string(stage) + ", after " + std::to_string(after));
          const std::vector<at::Tensor> got = trained_weights(config_of(stage, delayed_after(after)), world);
          ASSERT_EQ(got.size(), want.size());
          for (size_t i = 0; i < want.size(); ++i) {
            EXPECT_TRUE(at::allclose(got[i].to(at::kFloat), want[i].to(at::kFloat), /*rtol=*/1e-6, /*atol=*/1e-6)) << i;
          }
        }
      });
    }
  }
}

// Its weights are those of steps that nothing delays; with both, of the steps before that one begins.
TEST(LazyPublish, ChangesNoWeight) {
  for (const char* const backend : {"shm", "gloo"}) {
    for (const int after : {kSteps, 2}) {
      const std::vector<at::Tensor> want = reference_weights(2, after);
      test::spawn_ranks(
          2,
          [&](const auto& world) {
            for (const int stage : {0, 1, 2, 3}) {
              json own = {{"lazy_publish", true}};
              if (after < kSteps) own.update(delayed_after(after));
              const std::vector<at::Tensor> got = trained_weights(config_of(stage, own), world);
              for (size_t i = 0; i < want.size(); ++i) {
                EXPECT_TRUE(at::allclose(got[i].to(at::kFloat), want[i].to(at::kFloat), /*rtol=*/1e-6, /*atol=*/1e-6))
                    << "stage " << stage << ", parameter " << i;
              }
            }
          },
          {.backend = backend});
    }
  }
}

TEST(DelayedUpdate, BeginsAfterTheStepsThatItIsToldToLeave) {
  const auto world = comm::Group::alone();
  const auto plain = trained_weights(config_of(2, json::object()), world);
  const auto later = trained_weights(config_of(2, delayed_after(kSteps)), world);
  const auto at_once = trained_weights(config_of(2, delayed_after(0)), world);
  EXPECT_TRUE(at::equal(later[0], plain[0]));
  EXPECT_FALSE(at::equal(at_once[0], plain[0]));
}

TEST(DelayedUpdate, ResumesFromACheckpointWithTheSameBits) {
  const test::TemporaryFolder folder;
  test::spawn_ranks(2, [&](const auto& world) {
    const json config = config_of(2, delayed_after(0), "AdamW");
    const auto first = engine_of(config, world);
    take_steps(*first, 0, 3);
    first->save_checkpoint(folder.path());
    take_steps(*first, 3, kSteps);
    first->finish_update();
    const auto resumed = engine_of(config, world);
    ASSERT_TRUE(resumed->load_checkpoint(folder.path()));
    take_steps(*resumed, 3, kSteps);
    resumed->finish_update();
    const auto want = test::weights_of(*first), got = test::weights_of(*resumed);
    for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(at::equal(got[i], want[i])) << i;
  });
}

TEST(DelayedUpdate, AnEngineMayGoWhileAnUpdateIsUnderWay) {
  const auto engine = engine_of(config_of(2, delayed_after(0)), comm::Group::alone());
  take_steps(*engine, 0, 1);
}

std::string refusal_of(json config, const json& patch) {
  config.merge_patch(patch);
  try {
    engine_of(config, comm::Group::alone());
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfig);
    return error.what();
  }
  return "no error";
}

TEST(DelayedUpdate, RefusesWhatItCannotDo) {
  const test::TemporaryFolder folder;
  const json config = config_of(2, delayed_after(0));
  EXPECT_THAT(refusal_of(config, {{"bf16", {{"enabled", false}}}}), HasSubstr("needs master weights"));
  EXPECT_THAT(refusal_of(config, {{"optimizer", {{"type", "Lamb"}}}}), HasSubstr("each element independently"));
  const json nvme = {{"device", "nvme"}, {"nvme_path", folder.path().string()}};
  EXPECT_THAT(refusal_of(config, {{"zero_optimization", {{"offload_optimizer", nvme}}}}), HasSubstr("in memory"));
}

}  // namespace
}  // namespace tessera::delayed_update_test
