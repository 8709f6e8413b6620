// Every optimizer that a configuration can name, through the engine, at every stage and on one and two ranks: equal to
// one process in fp64 that takes the steps of LibTorch's own class, or of the paper's formula written out here.
#include "tessera/optim/optimizers.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <map>

#include "tessera/base/error.h"
#include "tessera/engine/engine.h"
#include "tests/engine/toy_models.h"
#include "tests/support/spawn_ranks.h"
#include "tests/support/temporary_folder.h"

namespace tessera::optimizers_test {
namespace {

using test::Block;
using test::kWidth;

constexpr int kSteps = 20;
constexpr double kLr = 0.01;
constexpr double kDecay = 0.1;
constexpr double kEps = 1e-2;  // large, so that a gradient near 0 does not make the comparison ill-conditioned

using Weights = std::map<std::string, at::Tensor>;

class Model : public torch::nn::Module {
 public:
  virtual at::Tensor loss(int step, int rank) = 0;
};

// tanh(x W), W of any shape.
class Dense : public nn::UnitModule<Dense> {
 public:
  Dense(int64_t in, int64_t out, int seed) { weight = register_parameter("weight", Block::values({in, out}, seed)); }
  at::Tensor forward(const at::Tensor& x) { return at::tanh(at::matmul(x, weight)); }
  at::Tensor weight;
};

at::Tensor waves(const std::vector<int64_t>& shape, double phase) {
  int64_t numel = 1;
  for (const int64_t size : shape) numel *= size;
  const at::Tensor n = at::arange(numel, at::kDouble);
  return at::sin(n * n * 0.013 + n * 0.7 + phase).view(shape).to(at::kFloat);
}

// A network with matrices of several shapes and a bias.
class Funnel : public Model {
 public:
  Funnel() {
    square = register_module("square", std::make_shared<Block>(1));
    wide = register_module("wide", std::make_shared<Dense>(kWidth, 20, 2));
    tall = register_module("tall", std::make_shared<Dense>(20, 6, 3));
  }
  at::Tensor loss(int step, int rank) override {
    const at::ScalarType dtype = tall->weight.scalar_type();
    const at::Tensor x = waves({8, kWidth}, step * 7.0 + rank * 1.3).to(dtype);
    const at::Tensor y = (*tall)((*wide)((*square)(x)));
    return (y - waves({8, 6}, 0.4).to(dtype)).square().mean();
  }
  std::shared_ptr<Block> square;
  std::shared_ptr<Dense> wide, tall;
};

// The sum of w * c: a gradient that does not depend on the weights and is known exactly.
class Weighed : public nn::UnitModule<Weighed> {
 public:
  Weighed(const std::vector<int64_t>& shape, int seed) {
    weight = register_parameter("weight", Block::values(shape, seed));
  }
  at::Tensor forward(const at::Tensor& c) { return (weight.to(at::kDouble) * c).sum(); }
  at::Tensor weight;
};

// Gradients of which every singular value is far from 0, in a few bits: Muon's iteration multiplies rounding errors by
// up to 3.4^5 where a singular value is near 0, and no two orders of additions agree there. Square, wide, tall, a
// tensor of three dimensions, a vector, and a matrix whose name is an embedding's.
class Slopes : public Model {
 public:
  Slopes() {
    const std::vector<std::pair<std::string, std::vector<int64_t>>> shapes = {
        {"square", {12, 12}}, {"wide", {12, 20}},   {"tall", {20, 6}},
        {"cube", {6, 3, 4}},  {"vector", {kWidth}}, {"embedding", {8, 8}}};
    for (const auto& [name, shape] : shapes) {
      weights.push_back(register_module(name, std::make_shared<Weighed>(shape, static_cast<int>(weights.size()))));
      shapes_.push_back(shape);
    }
  }
  at::Tensor loss(int step, int rank) override {
    at::Tensor sum;
    for (size_t i = 0; i < weights.size(); ++i) {
      const std::vector<int64_t>& shape = shapes_[i];
      at::Tensor slope = (waves(shape, step * 7.0 + rank * 1.3) * 8).round() / 32;
      if (shape.size() > 1) slope = slope + at::eye(shape[0], slope.numel() / shape[0]).view(shape);
      const at::Tensor part = (*weights[i])(slope);
      sum = sum.defined() ? sum + part : part;
    }
    return sum;
  }
  std::vector<std::shared_ptr<Weighed>> weights;

 private:
  std::vector<std::vector<int64_t>> shapes_;
};

// References ----------------------------------------------------------------------------------------------------------

using StepReference = std::function<void()>;  // from the gradients to the weights
using MakeReference = std::function<StepReference(torch::nn::Module& model)>;

template <class TorchOptimizer, class Options>
MakeReference torchs(const Options& options) {
  return [options](torch::nn::Module& model) -> StepReference {
    auto optimizer = std::make_shared<TorchOptimizer>(model.parameters(), options);
    return [optimizer] { optimizer->step(); };
  };
}

struct Moments {
  at::Tensor m, v;
};

// One parameter's step by a formula; t counts from 1.
using Formula = std::function<void(const std::string& name, at::Tensor& w, const at::Tensor& g, Moments& s, int t)>;

MakeReference by(const Formula& formula) {
  return [formula](torch::nn::Module& model) -> StepReference {
    auto moments = std::make_shared<std::map<std::string, Moments>>();
    auto t = std::make_shared<int>(0);
    return [&model, formula, moments, t] {
      ++*t;
      for (auto& item : model.named_parameters()) {
        at::Tensor& w = item.value();
        auto [entry, is_new] = moments->try_emplace(item.key(), Moments{at::zeros_like(w), at::zeros_like(w)});
        formula(item.key(), w, w.grad(), entry->second, *t);
      }
    };
  };
}

// Chen et al. 2023, algorithm 2.
void lion(const std::string&, at::Tensor& w, const at::Tensor& g, Moments& s, int) {
  w.mul_(1 - kLr * kDecay);
  w.sub_(kLr * (0.9 * s.m + 0.1 * g).sign());
  s.m = 0.99 * s.m + 0.01 * g;
}

// You et al. 2020 with DeepSpeed's placing of the bias correction and its clamp of the ratio to [0.01, 10].
void lamb(const std::string&, at::Tensor& w, const at::Tensor& g, Moments& s, int t) {
  s.m = 0.9 * s.m + 0.1 * g;
  s.v = 0.999 * s.v + 0.001 * g * g;
  const at::Tensor u = s.m / (s.v.sqrt() + kEps) + kDecay * w;
  const double ratio = std::clamp(w.norm().item<double>() / u.norm().item<double>(), 0.01, 10.0);
  w.sub_(kLr * std::sqrt(1 - std::pow(0.999, t)) / (1 - std::pow(0.9, t)) * ratio * u);
}

// Jordan et al. 2024: the quintic Newton-Schulz iteration, five times.
void muon(const std::string& name, at::Tensor& w, const at::Tensor& g, Moments& s, int t) {
  if (w.dim() < 2 || name == "embedding.weight") {
    s.m = 0.9 * s.m + 0.1 * g;
    s.v = 0.999 * s.v + 0.001 * g * g;
    w.mul_(1 - kLr * kDecay);
    w.sub_(kLr * (s.m / (1 - std::pow(0.9, t))) / ((s.v / (1 - std::pow(0.999, t))).sqrt() + kEps));
    return;
  }
  s.m = 0.95 * s.m + 0.05 * g;
  at::Tensor x = (0.05 * g + 0.95 * s.m).reshape({w.size(0), -1});
  const double rows = static_cast<double>(x.size(0)), columns = static_cast<double>(x.size(1));
  if (rows > columns) x = x.t();
  x = x / (x.norm() + 1e-7);
  for (int i = 0; i < 5; ++i) {
    const at::Tensor a = at::matmul(x, x.t());
    x = 3.4445 * x + at::matmul(-4.7750 * a + 2.0315 * at::matmul(a, a), x);
  }
  if (rows > columns) x = x.t();
  const double muon_lr = 2 * kLr;
  w.mul_(1 - muon_lr * kDecay);
  w.sub_(muon_lr * std::sqrt(std::max(1.0, rows / columns)) * x.reshape(w.sizes()));
}

// Cases ---------------------------------------------------------------------------------------------------------------

using MakeModel = std::shared_ptr<Model> (*)();

template <class M>
std::shared_ptr<Model> make() {
  return std::make_shared<M>();
}

struct Case {
  std::string name;
  nlohmann::json optimizer;
  MakeReference reference;
  MakeModel model = make<Funnel>;
};

std::vector<Case> cases() {
  using namespace torch::optim;
  const nlohmann::json common = {{"lr", kLr}, {"weight_decay", kDecay}};
  const auto with = [&](const std::string& type, const nlohmann::json& more) {
    nlohmann::json params = common;
    params.update(more);
    return nlohmann::json{{"type", type}, {"params", params}};
  };
  return {
      {"AdamW", with("AdamW", {{"eps", kEps}}), torchs<AdamW>(AdamWOptions(kLr).eps(kEps).weight_decay(kDecay))},
      {"AdamL2", with("Adam", {{"eps", kEps}, {"adam_w_mode", false}}),
       torchs<Adam>(AdamOptions(kLr).eps(kEps).weight_decay(kDecay))},
      {"Adagrad", with("Adagrad", {{"eps", kEps}, {"lr_decay", 0.1}}),
       torchs<Adagrad>(AdagradOptions(kLr).eps(kEps).weight_decay(kDecay).lr_decay(0.1))},
      {"SGD", with("SGD", nlohmann::json::object()), torchs<SGD>(SGDOptions(kLr).weight_decay(kDecay))},
      {"SGDMomentum", with("SGD", {{"momentum", 0.9}, {"dampening", 0.2}}),
       torchs<SGD>(SGDOptions(kLr).weight_decay(kDecay).momentum(0.9).dampening(0.2))},
      {"SGDNesterov", with("SGD", {{"momentum", 0.9}, {"nesterov", true}}),
       torchs<SGD>(SGDOptions(kLr).weight_decay(kDecay).momentum(0.9).nesterov(true))},
      {"Lion", with("Lion", {{"betas", {0.9, 0.99}}}), by(lion)},
      {"Lamb", with("Lamb", {{"eps", kEps}}), by(lamb)},
      {"Muon", with("Muon", {{"eps", kEps}, {"muon_lr", 2 * kLr}}), by(muon), make<Slopes>},
  };
}

Weights weights_of(const torch::nn::Module& model) {
  Weights weights;
  for (const auto& item : model.named_parameters()) {
    weights[item.key()] = item.value().detach().to(at::kDouble, /*non_blocking=*/false, /*copy=*/true);
  }
  return weights;
}

Weights train_plainly(const Case& c, int ranks) {
  const auto model = c.model();
  model->to(at::kDouble);
  const StepReference step_reference = c.reference(*model);
  for (int step = 0; step < kSteps; ++step) {
    model->zero_grad();
    for (int rank = 0; rank < ranks; ++rank) (model->loss(step, rank) / ranks).backward();
    const at::NoGradGuard no_grad;
    step_reference();
  }
  return weights_of(*model);
}

config::DsConfig config_of(const nlohmann::json& optimizer, int stage, int ranks) {
  const nlohmann::json json = {{"train_micro_batch_size_per_gpu", 2},
                               {"gradient_clipping", 0.0},
                               {"zero_optimization", {{"stage", stage}}},
                               {"optimizer", optimizer}};
  return config::parse_ds_config(json, "the test", {.data_parallel_size = ranks});
}

Weights train_with_engine(const std::shared_ptr<Model>& model, const config::DsConfig& config,
                          const InitializeOptions& options) {
  const auto engine = initialize(model, config, options);
  for (int step = 0; step < kSteps; ++step) {
    engine->backward(
        engine->call([](Model& m, int s, int rank) { return m.loss(s, rank); }, step, options.world->rank()));
    engine->step();
  }
  EXPECT_EQ(engine->skipped_steps(), 0);
  const Gathered whole(*engine);
  return weights_of(*model);
}

Weights train_with_engine(const Case& c, int stage, const std::shared_ptr<comm::Group>& world) {
  return train_with_engine(c.model(), config_of(c.optimizer, stage, world->size()), {.world = world});
}

void expect_close(const Weights& got, const Weights& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [name, value] : want) {
    const double difference = (got.at(name) - value).abs().max().item<double>() / value.abs().max().item<double>();
    EXPECT_LT(difference, 1e-6) << what << ": " << name;
  }
}

class EveryOptimizer : public testing::TestWithParam<Case> {};

TEST_P(EveryOptimizer, IsItsReferenceAtEveryStageOnOneRank) {
  const Weights want = train_plainly(GetParam(), 1);
  for (int stage = 0; stage <= 3; ++stage) {
    expect_close(train_with_engine(GetParam(), stage, comm::Group::alone()), want, "stage " + std::to_string(stage));
  }
}

TEST_P(EveryOptimizer, IsItsReferenceAtEveryStageOnTwoRanks) {
  test::spawn_ranks(2, [](const std::shared_ptr<comm::Group>& world) {
    const Weights want = train_plainly(GetParam(), 2);
    Weights first;
    for (int stage = 0; stage <= 3; ++stage) {
      const Weights got = train_with_engine(GetParam(), stage, world);
      expect_close(got, want, "stage " + std::to_string(stage));
      if (stage == 0) first = got;
      for (const auto& [name, value] : got) EXPECT_TRUE(at::equal(value, first.at(name))) << stage << ": " << name;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All, EveryOptimizer, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

// A reference that learned nothing would agree with an optimizer that does nothing.
TEST(OptimizerReferences, MoveTheWeightsAndDifferFromEachOther) {
  std::vector<at::Tensor> results{Funnel().square->weight.detach().to(at::kDouble)};
  for (Case c : cases()) {
    c.model = make<Funnel>;
    results.push_back(train_plainly(c, 1).at("square.weight"));
  }
  for (size_t i = 0; i < results.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      EXPECT_GT((results[i] - results[j]).abs().max().item<double>(), 1e-4) << i << " and " << j;
    }
  }
}

// The two functions of an optimizer of one's own: here plain gradient descent with the group's rate.
class OwnOptimizer : public optim::Optimizer {
 public:
  std::vector<std::string> state_names() const override { return {}; }
  void update(std::span<optim::ParamShard> shards, const optim::UpdateInput& input) const override {
    for (optim::ParamShard& shard : shards) {
      shard.weight.sub_(shard.grad, input.groups[shard.group].lr / input.grad_divisor);
    }
  }
};

class OwnOfTheWholeModel : public OwnOptimizer {
 public:
  bool takes_whole_model() const override { return true; }
};

TEST(OwnOptimizers, TrainInsteadOfTheConfigurations) {
  test::spawn_ranks(2, [](const std::shared_ptr<comm::Group>& world) {
    const Case sgd{.name = "", .optimizer = {}, .reference = torchs<torch::optim::SGD>(torch::optim::SGDOptions(0.05))};
    const Weights want = train_plainly(sgd, 2);
    nlohmann::json json = {
        {"train_micro_batch_size_per_gpu", 2}, {"gradient_clipping", 0.0}, {"zero_optimization", {{"stage", 3}}}};
    for (const std::shared_ptr<optim::Optimizer>& own : std::vector<std::shared_ptr<optim::Optimizer>>{
             std::make_shared<OwnOptimizer>(), std::make_shared<OwnOfTheWholeModel>()}) {
      const Weights got =
          train_with_engine(make<Funnel>(), config::parse_ds_config(json, "the test", {.data_parallel_size = 2}),
                            {.world = world, .optimizer = own, .param_group = {.lr = 0.05}});
      expect_close(got, want, own->takes_whole_model() ? "of the whole model" : "unit by unit");
    }
  });
}

TEST(OwnOptimizers, OfTheWholeModelAreRefusedWhatIsNotFp32AndInMemory) {
  const test::TemporaryFolder folder;
  const nlohmann::json on_disk = {
      {"zero_optimization",
       {{"stage", 2}, {"offload_optimizer", {{"device", "nvme"}, {"nvme_path", folder.path().string()}}}}}};
  const nlohmann::json in_bf16 = {
      {"zero_optimization", {{"stage", 2}}},
      {"bf16", {{"enabled", true}, {"bf16_master_weights_and_grads", true}, {"bf16_optimizer_states", true}}}};
  for (nlohmann::json json : {on_disk, in_bf16}) {
    json["train_batch_size"] = 2;
    const config::DsConfig config = config::parse_ds_config(json, "the test", {});
    EXPECT_NO_THROW(initialize(std::make_shared<Funnel>(), config, {.optimizer = std::make_shared<OwnOptimizer>()}));
    try {
      initialize(std::make_shared<Funnel>(), config, {.optimizer = std::make_shared<OwnOfTheWholeModel>()});
      ADD_FAILURE() << json;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kConfig);
    }
  }
}

// In 16 bits: the same gradients on both sides (Slopes), so the compute weights are the reference's, rounded: within
// one unit in the last place.
class In16Bits : public testing::TestWithParam<std::tuple<Case, std::string>> {};

TEST_P(In16Bits, TheComputeWeightsAreTheReferencesRounded) {
  auto [c, precision] = GetParam();
  c.model = make<Slopes>;
  const double unit = precision == "bf16" ? 0x1p-7 : 0x1p-10;  // of the last place, relative
  const nlohmann::json json = {{"train_micro_batch_size_per_gpu", 1},
                               {"gradient_clipping", 0.0},
                               {precision, precision == "fp16" ? nlohmann::json{{"enabled", true}, {"loss_scale", 256}}
                                                               : nlohmann::json{{"enabled", true}}},
                               {"zero_optimization", {{"stage", 1}}},
                               {"optimizer", c.optimizer}};
  const Weights got =
      train_with_engine(c.model(), config::parse_ds_config(json, "the test", {}), {.world = comm::Group::alone()});
  double largest = 0;
  for (const auto& [name, want] : train_plainly(c, 1)) {
    const at::Tensor error = (got.at(name) - want).abs() / want.abs().clamp_min(1e-3);
    EXPECT_LE(error.max().item<double>(), unit) << name;
    largest = std::max(largest, error.max().item<double>());
  }
  EXPECT_GT(largest, unit / 8) << "the weights were not in 16 bits";
}

INSTANTIATE_TEST_SUITE_P(All, In16Bits, testing::Combine(testing::ValuesIn(cases()), testing::Values("bf16", "fp16")),
                         [](const auto& info) { return std::get<0>(info.param).name + std::get<1>(info.param); });

}  // namespace
}  // namespace tessera::optimizers_test
