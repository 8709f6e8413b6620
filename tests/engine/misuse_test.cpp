// What goes wrong around an engine in a user's first hour: each is a sentence that says what happened, and no wait, no
// NaN, and no step that changes nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include <filesystem>
#include <functional>
#include <string>

#include "tessera/base/error.h"
#include "tessera/config/ds_config.h"
#include "tessera/engine/engine.h"
#include "tests/engine/toy_models.h"
#include "tests/support/spawn_ranks.h"
#include "tests/support/temporary_folder.h"

namespace tessera::misuse_test {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

constexpr int kAllStages[] = {0, 1, 2, 3};

config::DsConfig config_of(int stage, int64_t ranks = 1, const json& more = json::object()) {
  json config = {{"train_micro_batch_size_per_gpu", 2},
                 {"zero_optimization", {{"stage", stage}, {"stage3_param_persistence_threshold", 0}}},
                 {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 0.01}}}}}};
  config.merge_patch(more);
  return config::parse_ds_config(config, "the test", {.data_parallel_size = ranks});
}

// Three blocks, and a head that no unit holds.
class Net : public torch::nn::Module {
 public:
  Net() {
    blocks = register_module("blocks", std::make_shared<test::ThreeBlocks>());
    head = register_parameter("head", test::Block::values({test::kWidth, 2}, 3));
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = x;
    for (const auto& block : blocks->blocks) y = (*block)(y);
    return test::mean_square(at::matmul(y, head));
  }
  std::shared_ptr<test::ThreeBlocks> blocks;
  at::Tensor head;
};

at::Tensor batch() { return test::Block::values({4, test::kWidth}, 1); }

template <class Model>
void step(ModelEngine<Model>& engine) {
  engine.backward(engine.forward(batch()));
  engine.step();
}

// The text of the exception, whatever its type; empty where there is none.
std::string refusal(const std::function<void()>& act) {
  try {
    act();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

const auto kSaysSharded =
    AllOf(HasSubstr("'head' are sharded (ZeRO stage 3)"), HasSubstr("run the model through its engine"));

TEST(Misuse, AWeightThatIsReadAtStage3SaysThatItIsSharded) {
  auto model = std::make_shared<Net>();
  const auto engine = initialize(model, config_of(3));
  EXPECT_THAT(refusal([&] { model->head.mean(); }), kSaysSharded);
  EXPECT_THAT(refusal([&] { model->head.detach().clone(); }), kSaysSharded);
  EXPECT_THAT(refusal([&] { model->head[0][0].item<float>(); }), kSaysSharded);
  EXPECT_EQ(model->head.sizes(), (std::vector<int64_t>{test::kWidth, 2}));  // its shape may be asked for
  step(*engine);
  EXPECT_THAT(refusal([&] { model->head.mean(); }), kSaysSharded);
  const Gathered whole(*engine);
  EXPECT_TRUE(std::isfinite(model->head.mean().item<float>()));
}

TEST(Misuse, TorchSaveOfShardedWeightsIsRefusedAndNotAFileOfNothing) {
  const test::TemporaryFolder folder;
  auto model = std::make_shared<Net>();
  const auto engine = initialize(model, config_of(3));
  const std::string path = (folder.path() / "model.pt").string();
  EXPECT_THAT(refusal([&] { torch::save(model, path); }), HasSubstr("are sharded (ZeRO stage 3)"));
  const Gathered whole(*engine);
  torch::save(model, path);
  auto loaded = std::make_shared<Net>();
  torch::load(loaded, path);
  EXPECT_TRUE(at::equal(loaded->head, model->head));
}

TEST(Misuse, AForwardPastTheEngineSaysSo) {
  auto model = std::make_shared<Net>();
  const auto engine = initialize(model, config_of(3));
  EXPECT_THAT(refusal([&] { model->forward(batch()); }), kSaysSharded);
}

TEST(Misuse, AnOptimizerOfOnesOwnIsToldThatTheEngineHasTheGradients) {
  for (const int stage : kAllStages) {
    auto model = std::make_shared<Net>();
    const auto engine = initialize(model, config_of(stage));
    torch::optim::SGD own(model->parameters(), torch::optim::SGDOptions(0.1));
    engine->backward(engine->forward(batch()));
    const std::string text = refusal([&] { own.step(); });  // at stage 3 it may come upon a weight first
    EXPECT_THAT(text, testing::AnyOf(AllOf(HasSubstr("taken by the engine"), HasSubstr("engine->step()")),
                                     HasSubstr("are sharded (ZeRO stage 3)")))
        << stage;
    EXPECT_THAT(refusal([&] { torch::nn::utils::clip_grad_norm_(model->parameters(), 1.0); }),
                AllOf(HasSubstr("taken by the engine"), HasSubstr("gradient_clipping")))
        << stage;
  }
}

// The stand-in for a gradient must not be added to by autograd, nor change what the engine computes.
TEST(Misuse, TheStandInsOfGradientsChangeNothing) {
  for (const int stage : kAllStages) {
    auto model = std::make_shared<Net>();
    const auto engine =
        initialize(model, config_of(stage, 1, {{"gradient_accumulation_steps", 2}, {"gradient_clipping", 0}}));
    auto plain = std::make_shared<Net>();
    torch::optim::AdamW reference(plain->parameters(), torch::optim::AdamWOptions(0.01).weight_decay(0));
    for (int micro = 0; micro < 4; ++micro) {
      step(*engine);
      (plain->forward(batch()) / 2).backward();
      if (micro % 2 == 0) continue;
      reference.step();
      reference.zero_grad();
    }
    const Gathered whole(*engine);
    for (const auto& item : plain->named_parameters()) {
      EXPECT_TRUE(at::allclose(model->named_parameters()[item.key()], item.value(), 1e-5, 1e-6)) << item.key();
    }
  }
}

TEST(Misuse, AParameterThatIsReplacedOrAddedLaterIsNamed) {
  for (const int stage : kAllStages) {
    auto model = std::make_shared<Net>();
    const auto engine = initialize(model, config_of(stage));
    step(*engine);
    model->register_parameter("bias", at::zeros({2}));
    EXPECT_THAT(refusal([&] { engine->forward(batch()); }),
                AllOf(HasSubstr("the parameter 'bias' was added after initialize"), HasSubstr("before initialize")));

    auto other = std::make_shared<Net>();
    const auto second = initialize(other, config_of(stage));
    step(*second);
    other->head = at::zeros({test::kWidth, 2}, at::requires_grad());
    other->named_parameters(/*recurse=*/false);
    other->unregister_module("blocks");
    other->register_module("blocks", std::make_shared<test::ThreeBlocks>());
    EXPECT_THAT(refusal([&] { second->forward(batch()); }), HasSubstr("weight' was replaced after initialize"));
  }
}

TEST(Misuse, AFrozenParameterThatIsToTrainLaterIsNamed) {
  auto model = std::make_shared<Net>();
  model->head.set_requires_grad(false);
  const auto engine = initialize(model, config_of(3));
  step(*engine);
  model->head.set_requires_grad(true);
  EXPECT_THAT(refusal([&] { engine->forward(batch()); }),
              HasSubstr("'head' was frozen when the engine was made, and requires a gradient now"));
}

TEST(Misuse, ASecondEngineOfAModelIsRefused) {
  for (const int stage : kAllStages) {
    auto model = std::make_shared<Net>();
    auto engine = initialize(model, config_of(stage));
    EXPECT_THAT(refusal([&] { initialize(model, config_of(stage)); }),
                AllOf(HasSubstr("already belongs to an engine"), HasSubstr("destroy it")));
    step(*engine);  // which goes on
    engine.reset();
    const std::string later = refusal([&] { initialize(model, config_of(stage)); });
    if (stage < 3) {
      EXPECT_EQ(later, "");
    } else {
      EXPECT_THAT(later, HasSubstr("has no values: an engine that is gone had sharded it"));
    }
  }
}

// A bias more, in the second rank's model.
class NetWithBias : public Net {
 public:
  NetWithBias() { register_parameter("bias", at::zeros({2})); }
};

TEST(Misuse, RanksWithDifferentModelsAreToldBeforeAnythingIsExchanged) {
  for (const int stage : kAllStages) {
    test::spawn_ranks(2, [stage](const std::shared_ptr<comm::Group>& world) {
      std::shared_ptr<Net> model = world->rank() == 0 ? std::make_shared<Net>() : std::make_shared<NetWithBias>();
      const std::string text = refusal([&] { initialize(model, config_of(stage, 2), {.world = world}); });
      EXPECT_THAT(text, AllOf(HasSubstr("rank 1 has another model than rank 0"), HasSubstr("'bias' of shape [2]")));
    });
  }
  test::spawn_ranks(2, [](const std::shared_ptr<comm::Group>& world) {
    auto model = std::make_shared<Net>();
    model->head.set_requires_grad(world->rank() == 0);
    EXPECT_THAT(refusal([&] { initialize(model, config_of(3, 2), {.world = world}); }),
                HasSubstr("'head' of shape [12, 2], frozen"));
  });
}

// A ds_config as a value of the program: what is wrong is named, as in a file, and what it leaves open follows from the
// ranks of the run.
TEST(Misuse, AConfigurationOfTheProgramsOwnNamesWhatIsWrongWithIt) {
  const auto model = std::make_shared<Net>();
  try {
    initialize(model, json{{"train_batch_size", 4}, {"zero_optimisation", {{"stage", 3}}}},
               {.world = comm::Group::alone()});
    FAIL() << "it was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfig);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("zero_optimisation"), HasSubstr("zero_optimization")));
  }
  test::spawn_ranks(2, [](std::shared_ptr<comm::Group> world) {
    const auto engine = initialize(std::make_shared<Net>(),
                                   json{{"train_batch_size", 12},
                                        {"gradient_accumulation_steps", 3},
                                        {"optimizer", {{"type", "SGD"}, {"params", {{"lr", 0.01}}}}}},
                                   {.world = world});
    EXPECT_EQ(engine->train_batch_size(), 12);
    EXPECT_EQ(engine->train_micro_batch_size_per_gpu(), 2);
    EXPECT_EQ(engine->gradient_accumulation_steps(), 3);
  });
}

TEST(StepsPerPrint, LogsAStepInDeepSpeedsWords) {
  auto model = std::make_shared<Net>();
  const auto engine = initialize(model, config_of(1, 1, {{"steps_per_print", 2}}));
  testing::internal::CaptureStderr();
  for (int i = 0; i < 4; ++i) step(*engine);
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, AllOf(HasSubstr("step=2, skipped=0, lr=[0.01, 0.01], mom=[[0.9, 0.999], [0.9, 0.999]]"),
                         HasSubstr("step=4, ")));
  EXPECT_THAT(log, testing::Not(HasSubstr("step=3")));
}

}  // namespace
}  // namespace tessera::misuse_test
