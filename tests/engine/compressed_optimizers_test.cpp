// The optimizers whose communication is compressed, on real ranks: equal to one process in fp64 that plays all ranks by
// the papers' formulas, written out here; fewer bytes; the same bits when resumed.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <map>

#include "tessera/config/ds_config.h"
#include "tessera/engine/engine.h"
#include "tessera/zero/sharded_model.h"
#include "tests/engine/toy_models.h"
#include "tests/support/spawn_ranks.h"
#include "tests/support/temporary_folder.h"

namespace tessera::compressed_optimizers_test {
namespace {

using test::Block;
using test::kWidth;

constexpr double kLr = 0.01, kDecay = 0.1, kEps = 1e-2, kBeta1 = 0.9, kBeta2 = 0.99;
constexpr int kSteps = 20;
constexpr int kFreeze = 6;

at::Tensor waves(const std::vector<int64_t>& shape, double phase) {
  int64_t numel = 1;
  for (const int64_t size : shape) numel *= size;
  const at::Tensor n = at::arange(numel, at::kDouble);
  return at::sin(n * n * 0.013 + n * 0.7 + phase).view(shape).to(at::kFloat);
}

// Two units; the first input is always 0, so that the first row of block0's weight never has a gradient.
class Model : public torch::nn::Module {
 public:
  Model() {
    for (int i = 0; i < 2; ++i) {
      blocks.push_back(register_module("block" + std::to_string(i), std::make_shared<Block>(10 * i)));
    }
  }
  at::Tensor loss(int step, int rank) {
    const at::ScalarType dtype = blocks[0]->weight.scalar_type();
    at::Tensor x = waves({8, kWidth}, step * 7.0 + rank * 1.3).to(dtype);
    x.select(1, 0).zero_();
    const at::Tensor y = (*blocks[1])((*blocks[0])(x));
    return (y - waves({8, kWidth}, 0.4).to(dtype)).square().mean();
  }
  std::vector<std::shared_ptr<Block>> blocks;
};

// The papers, all ranks in one process -------------------------------------------------------------------------------

struct Part {
  int64_t first, numel;
};

// One parameter on every rank; tensors are flat and fp64.
struct Param {
  std::vector<at::Tensor> w, g, m, u, worker_error;  // one a rank
  at::Tensor v, fresh, met, server_error;
  double coeff = 0, factor = 1, lr_sum = 0;
  std::vector<Part> parts;  // that share a scale
};

at::Tensor signs_of(const at::Tensor& x) { return at::where(x >= 0, 1.0, -1.0).to(at::kDouble); }

// C(x) and x - C(x).
at::Tensor compressed(const at::Tensor& x, const at::Tensor& live, at::Tensor error) {
  const double count = live.sum().item<double>();
  const at::Tensor result = count == 0 ? at::zeros_like(x) : x.norm() / std::sqrt(count) * signs_of(x) * live;
  error.copy_((x - result) * live);
  return result;
}

at::Tensor mean_by_signs(Param& p, const std::vector<at::Tensor>& of_ranks) {
  if (of_ranks.size() == 1) return of_ranks[0];
  at::Tensor mean = at::zeros_like(of_ranks[0]);
  for (const Part& part : p.parts) {
    const auto cut = [&](const at::Tensor& whole) { return whole.narrow(0, part.first, part.numel); };
    const at::Tensor live = (cut(p.v) != 0).to(at::kDouble);
    at::Tensor sum = at::zeros({part.numel}, at::kDouble);
    for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
      const at::Tensor error = cut(p.worker_error[rank]);
      sum += compressed((cut(of_ranks[rank]) + error) * live, live, error) / static_cast<double>(of_ranks.size());
    }
    const at::Tensor error = cut(p.server_error);
    cut(mean).copy_(compressed((sum + error) * live, live, error));
  }
  return mean;
}

at::Tensor mean_of(const std::vector<at::Tensor>& of_ranks) { return at::stack(of_ranks).mean(0); }

at::Tensor seen(const Param& p, const at::Tensor& g) { return at::where(p.v != 0, g, 0.0); }

at::Tensor denominator(const at::Tensor& v) { return v.sqrt() + kEps; }

using Formula = std::function<void(Param& p, int t)>;

void onebit_adam(Param& p, int t) {
  const bool warm = t <= kFreeze;
  std::vector<at::Tensor> momenta;
  const at::Tensor mean = mean_of(p.g);
  if (warm) p.v = kBeta2 * p.v + (1 - kBeta2) * mean * mean;
  for (size_t r = 0; r < p.g.size(); ++r) {
    momenta.push_back(kBeta1 * p.m[0] + (1 - kBeta1) * (warm ? mean : seen(p, p.g[r])));
  }
  p.m[0] = warm ? momenta[0] : mean_by_signs(p, momenta);
  for (at::Tensor& w : p.w) w -= kLr * (p.m[0] / denominator(p.v) + kDecay * w);
}

void onebit_lamb(Param& p, int t) {
  const at::Tensor w = p.w[0];
  at::Tensor u;
  double coeff = 1;
  if (t <= kFreeze) {
    const at::Tensor mean = mean_of(p.g);
    p.m[0] = kBeta1 * p.m[0] + (1 - kBeta1) * mean;
    p.v = kBeta2 * p.v + (1 - kBeta2) * mean * mean;
    if (t == kFreeze) p.fresh = p.v.clone();
    u = p.m[0] / denominator(p.v) + kDecay * w;
    coeff = std::clamp((w.norm() / u.norm()).item<double>(), 0.01, 10.0);
    p.coeff = 0.9 * p.coeff + 0.1 * coeff;
  } else {
    std::vector<at::Tensor> momenta;
    for (const at::Tensor& g : p.g) momenta.push_back(kBeta1 * p.m[0] + (1 - kBeta1) * seen(p, g));
    const at::Tensor before = p.m[0];
    p.m[0] = mean_by_signs(p, momenta);
    const at::Tensor implied = (p.m[0] - kBeta1 * before) / (1 - kBeta1);
    p.fresh = kBeta2 * p.fresh + (1 - kBeta2) * implied * implied;
    const at::Tensor prelim = p.m[0] / denominator(p.v);
    u = prelim + kDecay * w;
    double factor = (denominator(p.v) / denominator(p.fresh)).max().item<double>();
    const double ratio = std::min(1.0, (prelim.norm() / u.norm()).item<double>());
    factor = std::clamp(factor * ratio + 1 - ratio, 0.5, 4.0);
    p.factor = std::clamp(factor, p.factor * 0.9, p.factor * 1.1);
    coeff = p.coeff * p.factor;
  }
  for (at::Tensor& each : p.w) each -= kLr * coeff * u;
}

// With var_update_scaler 2 the second moment is renewed at 1, 2 (interval 1), 4, 6 (2), 8, 12 (4), …; with
// local_step_scaler 3 and var_freeze_step 8 the ranks meet at 9, 10, 11, then at even steps from 12 on, …
constexpr int kVarFreeze = 8;
bool renews(int t) { return t == 1 || t == 2 || t == 4 || t == 6 || t == 8; }
bool meets(int t) { return t <= 11 || (t <= 14 ? t % 2 == 0 : t % 4 == 0); }

void zero_one_adam(Param& p, int t) {
  if (t <= kVarFreeze) {
    at::Tensor g = mean_of(p.g);
    if (renews(t)) {
      p.v = kBeta2 * p.v + (1 - kBeta2) * g * g;
    } else {
      std::vector<at::Tensor> own;
      for (const at::Tensor& each : p.g) own.push_back(seen(p, each));
      g = mean_by_signs(p, own);
    }
    p.m[0] = kBeta1 * p.m[0] + (1 - kBeta1) * g;
    for (size_t r = 0; r < p.w.size(); ++r) {
      p.m[r] = p.m[0];
      p.w[r] -= kLr * (p.m[0] / denominator(p.v) + kDecay * p.w[r]);
    }
    return;
  }
  if (t == kVarFreeze + 1) {
    for (at::Tensor& error : p.worker_error) error.zero_();
    p.server_error.zero_();
  }
  if (p.lr_sum == 0) p.met = p.w[0].clone();
  p.lr_sum += kLr;
  for (size_t r = 0; r < p.w.size(); ++r) {
    p.m[r] = kBeta1 * p.m[r] + (1 - kBeta1) * seen(p, p.g[r]);
    p.w[r] -= kLr * (p.m[r] / denominator(p.v) + kDecay * p.w[r]);
    p.u[r] += kLr * p.m[r];
  }
  if (!meets(t)) return;
  const at::Tensor moved = mean_by_signs(p, p.u);
  for (size_t r = 0; r < p.w.size(); ++r) {
    p.m[r] = moved / p.lr_sum;
    p.w[r].copy_(p.met * (1 - p.lr_sum * kDecay) - moved / denominator(p.v));
    p.u[r] = at::zeros_like(moved);
  }
  p.lr_sum = 0;
}

// Cases ---------------------------------------------------------------------------------------------------------------

struct Case {
  std::string type;
  nlohmann::json params;
  Formula formula;
};

std::vector<Case> cases() {
  return {
      {"OneBitAdam", {{"freeze_step", kFreeze}}, onebit_adam},
      {"OneBitLamb", {{"freeze_step", kFreeze}}, onebit_lamb},
      {"ZeroOneAdam",
       {{"var_freeze_step", kVarFreeze}, {"var_update_scaler", 2}, {"local_step_scaler", 3}, {"local_step_clipper", 4}},
       zero_one_adam}};
}

config::DsConfig config_of(const Case& c, int stage, int ranks, const nlohmann::json& more = nlohmann::json::object()) {
  nlohmann::json params = {{"lr", kLr}, {"weight_decay", kDecay}, {"eps", kEps}, {"betas", {kBeta1, kBeta2}}};
  params.update(c.params);
  nlohmann::json json = {{"train_micro_batch_size_per_gpu", 2},
                         {"gradient_clipping", 0.0},
                         {"zero_optimization", {{"stage", stage}}},
                         {"optimizer", {{"type", c.type}, {"params", params}}}};
  json.update(more);
  return config::parse_ds_config(json, "the test", {.data_parallel_size = ranks});
}

using ToyEngine = ModelEngine<Model>;

double train(ToyEngine& engine, int first, int last) {
  double loss_sum = 0;
  for (int step = first; step < last; ++step) {
    const at::Tensor loss =
        engine.call([](Model& m, int s, int rank) { return m.loss(s, rank); }, step, engine.world().rank());
    engine.backward(loss);
    engine.step();
    loss_sum += loss.item<double>();
  }
  return loss_sum;
}

std::map<std::string, at::Tensor> weights_of(const Model& model) {
  std::map<std::string, at::Tensor> weights;
  for (const auto& item : model.named_parameters()) weights[item.key()] = item.value().detach().clone();
  return weights;
}

// Every rank's weights after all steps.
std::vector<std::map<std::string, at::Tensor>> train_by_formula(const Case& c, int ranks,
                                                                const zero::ShardedModel& sharded) {
  std::map<std::string, Param> params;
  std::vector<std::shared_ptr<Model>> models;
  for (int rank = 0; rank < ranks; ++rank) {
    models.push_back(std::make_shared<Model>());
    models.back()->to(at::kDouble);
  }
  for (const auto& unit : sharded.units()) {
    for (int rank = 0; rank < ranks; ++rank) {
      for (const layout::Segment& segment : unit->layout().segments(unit->layout().shard(rank))) {
        params[unit->params()[segment.param].name()].parts.push_back({segment.first, segment.numel});
      }
    }
  }
  for (auto& [name, p] : params) {
    for (const auto& model : models) {
      p.w.push_back(model->named_parameters()[name].data().view({-1}));
      for (auto* each : {&p.m, &p.u, &p.worker_error}) each->push_back(at::zeros_like(p.w.back()));
    }
    p.v = at::zeros_like(p.w[0]);
    p.server_error = at::zeros_like(p.w[0]);
  }
  for (int step = 0; step < kSteps; ++step) {
    for (int rank = 0; rank < ranks; ++rank) {
      models[rank]->zero_grad();
      models[rank]->loss(step, rank).backward();
    }
    const at::NoGradGuard no_grad;
    for (auto& [name, p] : params) {
      p.g.clear();
      for (const auto& model : models) p.g.push_back(model->named_parameters()[name].grad().view({-1}));
      c.formula(p, step + 1);
    }
  }
  std::vector<std::map<std::string, at::Tensor>> weights;
  for (const auto& model : models) weights.push_back(weights_of(*model));
  return weights;
}

class EveryCompressedOptimizer : public testing::TestWithParam<Case> {};

TEST_P(EveryCompressedOptimizer, IsItsPapersFormulaAtStages0And1) {
  const auto body = [](const std::shared_ptr<comm::Group>& world) {
    for (int stage = 0; stage <= 1; ++stage) {
      const auto model = std::make_shared<Model>();
      const auto engine = initialize(model, config_of(GetParam(), stage, world->size()), {.world = world});
      train(*engine, 0, kSteps);
      const auto want = train_by_formula(GetParam(), world->size(), engine->sharded_model()).at(world->rank());
      for (const auto& [name, got] : weights_of(*model)) {
        const double error =
            (got - want.at(name)).abs().max().item<double>() / want.at(name).abs().max().item<double>();
        EXPECT_LT(error, 1e-6) << world->size() << " ranks, stage " << stage << ": " << name;
      }
    }
  };
  body(comm::Group::alone());
  test::spawn_ranks(2, body);
  test::spawn_ranks(3, body);
}

TEST_P(EveryCompressedOptimizer, SendsAtMostAQuarterOfFp16sBytes) {
  test::spawn_ranks(2, [](const std::shared_ptr<comm::Group>& world) {
    class Wide : public nn::UnitModule<Wide> {
     public:
      Wide() { weight = register_parameter("weight", waves({256, 256}, 0.3) / 16); }
      at::Tensor forward(const at::Tensor& x) { return at::tanh(at::matmul(x, weight)); }
      at::Tensor weight;
    };
    const nlohmann::json fp16 = {{"fp16", {{"enabled", true}, {"loss_scale", 64}}}};
    const auto bytes_of_step = [&](const Case& c, int stage, int step) {
      const auto engine = initialize(std::make_shared<Wide>(), config_of(c, stage, 2, fp16), {.world = world});
      int64_t before = 0;
      for (int i = 0; i < step; ++i) {
        before = world->bytes_sent();
        engine->backward(
            engine->forward(waves({4, 256}, i + world->rank()).to(at::kHalf)).to(at::kFloat).square().mean());
        engine->step();
        EXPECT_TRUE(engine->was_step_applied());
      }
      return static_cast<double>(world->bytes_sent() - before);
    };
    const double fp16_bytes = bytes_of_step({.type = "AdamW", .params = nlohmann::json::object(), .formula = {}}, 0, 1);
    EXPECT_GE(fp16_bytes, 256 * 256 * 2);  // of 2 ranks each sends half of the tensor twice
    for (int stage = 0; stage <= 1; ++stage) {
      EXPECT_LE(bytes_of_step(GetParam(), stage, 10), fp16_bytes / 4) << stage;
      EXPECT_GE(bytes_of_step(GetParam(), stage, 1), fp16_bytes) << "the first step is not compressed";
    }
  });
}

TEST_P(EveryCompressedOptimizer, ResumesWithTheSameBits) {
  const test::TemporaryFolder folder;
  test::spawn_ranks(2, [&](const std::shared_ptr<comm::Group>& world) {
    constexpr int kSaved = 13;  // 0/1 Adam's ranks are apart
    const auto model = std::make_shared<Model>();
    const auto engine = initialize(model, config_of(GetParam(), 1, 2), {.world = world});
    train(*engine, 0, kSaved);
    const auto at_save = weights_of(*model);
    engine->save_checkpoint(folder.path());
    train(*engine, kSaved, kSteps);

    const auto resumed_model = std::make_shared<Model>();
    const auto resumed = initialize(resumed_model, config_of(GetParam(), 0, 2), {.world = world});
    ASSERT_TRUE(resumed->load_checkpoint(folder.path()));
    for (const auto& [name, weight] : weights_of(*resumed_model)) EXPECT_TRUE(at::equal(weight, at_save.at(name)));
    train(*resumed, kSaved, kSteps);
    const auto want = weights_of(*model);
    for (const auto& [name, weight] : weights_of(*resumed_model)) EXPECT_TRUE(at::equal(weight, want.at(name))) << name;

    const auto alone =
        initialize(std::make_shared<Model>(), config_of(GetParam(), 0, 1), {.world = comm::Group::alone()});
    ASSERT_TRUE(alone->load_checkpoint(folder.path()));
    const double first = train(*alone, kSaved, kSaved + 10);
    EXPECT_LT(train(*alone, kSaved + 10, kSaved + 20), first) << "it goes on learning on another number of ranks";
  });
}

TEST_P(EveryCompressedOptimizer, SkipsAStepThatOverflowsOnOneRank) {
  test::spawn_ranks(2, [](const std::shared_ptr<comm::Group>& world) {
    const nlohmann::json fp16 = {{"fp16", {{"enabled", true}, {"initial_scale_power", 4}, {"hysteresis", 1}}}};
    const auto model = std::make_shared<Model>();
    const auto engine = initialize(model, config_of(GetParam(), 0, 2, fp16), {.world = world});
    train(*engine, 0, 12);
    const auto before = weights_of(*model);
    const at::Tensor loss = engine->call([](Model& m, int s, int rank) { return m.loss(s, rank); }, 12, world->rank());
    engine->backward(world->rank() == 1 ? loss.to(at::kFloat) * 1e30 : loss.to(at::kFloat));
    engine->step();
    EXPECT_FALSE(engine->was_step_applied());
    EXPECT_EQ(engine->loss_scale(), 8);
    for (const auto& [name, weight] : weights_of(*model)) EXPECT_TRUE(at::equal(weight, before.at(name))) << name;
  });
}

INSTANTIATE_TEST_SUITE_P(All, EveryCompressedOptimizer, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.type; });

}  // namespace
}  // namespace tessera::compressed_optimizers_test
