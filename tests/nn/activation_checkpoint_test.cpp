#include "tessera/nn/activation_checkpoint.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <functional>

#include "tessera/base/error.h"
#include "tessera/nn/activation_store.h"
#include "tests/support/live_bytes.h"

namespace tessera::nn::activation_checkpoint_test {
namespace {

using test::LiveBytes;
using testing::HasSubstr;

constexpr int64_t kRows = 5;
constexpr int64_t kWidth = 12;
constexpr double kDropout = 0.3;

at::Tensor wave(std::vector<int64_t> shape, double step) {
  int64_t numel = 1;
  for (const int64_t size : shape) numel *= size;
  return at::sin(at::arange(numel, at::kFloat) * step + 0.1).view(shape);
}

at::Tensor leaf(std::vector<int64_t> shape, double step) { return wave(std::move(shape), step).requires_grad_(true); }

// Two products and dropouts, and a residual.
struct Layer {
  explicit Layer(double step) : up(leaf({kWidth, 2 * kWidth}, step)), down(leaf({2 * kWidth, kWidth}, step + 0.2)) {}
  at::Tensor operator()(const at::Tensor& x) const {
    const at::Tensor inner = at::dropout(at::gelu(at::matmul(x, up)), kDropout, /*train=*/true);
    return x + at::dropout(at::matmul(inner, down), kDropout, /*train=*/true);
  }
  at::Tensor up, down;
};

// How a model runs a part of itself: plainly, or as a checkpoint.
using Part = std::function<at::Tensor(const at::Tensor&)>;
using RunPart = std::function<at::Tensor(const Part&, const at::Tensor&)>;
at::Tensor plainly(const Part& part, const at::Tensor& x) { return part(x); }
at::Tensor checkpointed(const Part& part, const at::Tensor& x) { return checkpoint(part, x); }

struct Toy {
  Layer a{0.31}, b{0.57};
  at::Tensor x = wave({kRows, kWidth}, 0.7);

  std::vector<at::Tensor> leaves() const { return {a.up, a.down, b.up, b.down, x}; }
};

// The loss, all gradients (empty where there is none), and the random numbers that come next.
std::vector<at::Tensor> results_of(const std::function<at::Tensor(Toy&, const RunPart&)>& model, const RunPart& run,
                                   bool input_needs_grad) {
  Toy toy;
  toy.x.requires_grad_(input_needs_grad);
  at::manual_seed(7);
  const at::Tensor loss = model(toy, run);
  const at::Tensor after_forward = at::rand({2});
  loss.backward();
  std::vector<at::Tensor> results = {loss.detach(), after_forward, at::rand({2})};
  for (const at::Tensor& tensor : toy.leaves()) {
    results.push_back(tensor.grad().defined() ? tensor.grad() : at::empty({0}));
  }
  return results;
}

void expect_same_bits(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(at::equal(got[i], want[i])) << "result " << i;
}

struct Model {
  const char* name;
  std::function<at::Tensor(Toy&, const RunPart&)> loss;
};

class CheckpointedPart : public testing::TestWithParam<Model> {};

TEST_P(CheckpointedPart, HasTheBitsOfThePlainCall) {
  for (const bool input_needs_grad : {true, false}) {
    const auto want = results_of(GetParam().loss, plainly, input_needs_grad);
    expect_same_bits(results_of(GetParam().loss, checkpointed, input_needs_grad), want);
    EXPECT_GT(want[3].numel(), 0);  // the parameters have gradients, whatever the input needs
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, CheckpointedPart,
    testing::Values(
        Model{"OneLayer", [](Toy& s, const RunPart& run) { return run(s.a, s.x).square().sum(); }},
        Model{"TwoLayers", [](Toy& s, const RunPart& run) { return run(s.b, run(s.a, s.x)).square().sum(); }},
        Model{"ALayerUsedTwice", [](Toy& s, const RunPart& run) { return run(s.a, run(s.a, s.x)).square().sum(); }},
        // The sums of x's and of a's gradients have an order, which shows in their last bits.
        Model{"ALayerAndItsInputAlsoUsedOutside",
              [](Toy& s, const RunPart& run) {
                const at::Tensor y = run([&s](const at::Tensor& x) { return s.a(s.a(x)); }, s.x);
                return (y + 0.7 * s.x + s.a(s.x)).square().sum();
              }},
        Model{"ACheckpointInACheckpoint",
              [](Toy& s, const RunPart& run) {
                const Part both = [&s, run](const at::Tensor& x) {
                  return at::tanh(run(s.b, at::tanh(run(s.a, x)) * 1.1)) * x;
                };
                return run(both, run(both, s.x)).square().sum();
              }},
        Model{"ThreeDeep",
              [](Toy& s, const RunPart& run) {
                const Part inner = [&s, run](const at::Tensor& x) { return run(s.a, at::sigmoid(x)); };
                const Part middle = [&s, run, inner](const at::Tensor& x) { return run(s.b, run(inner, x)).exp(); };
                return run([run, middle](const at::Tensor& x) { return at::tanh(run(middle, x)); }, s.x).sum();
              }},
        Model{"ACapturedTensorWithAGraph",
              [](Toy& s, const RunPart& run) {
                const at::Tensor other = at::tanh(at::matmul(s.x, s.b.up));
                const Part part = [&s, other](const at::Tensor& x) { return s.a(x) * other.narrow(1, 3, kWidth); };
                return (run(part, s.x).sum() + other.sum());
              }},
        Model{"AFunctionThatRunsBackwardItself",
              [](Toy& s, const RunPart& run) {
                const Part part = [&s](const at::Tensor& x) {
                  const at::Tensor inner = x.detach().requires_grad_(true);
                  const auto grads = torch::autograd::grad({s.a(inner).square().sum()}, {inner});
                  return s.b(x) * grads[0];
                };
                return run(part, run(s.a, s.x)).square().sum();
              }}),
    [](const auto& model) { return model.param.name; });

TEST(Checkpoint, TakesAndReturnsSeveralTensors) {
  const auto results = [](bool checkpoints) {
    const Layer layer(0.3);
    const at::Tensor x = leaf({kRows, kWidth}, 0.7), y = leaf({kRows, kWidth}, 0.2), nothing;
    const auto part = [&layer](const at::Tensor& p, const at::Tensor& q, const at::Tensor& undefined) {
      EXPECT_FALSE(undefined.defined());
      const at::Tensor out = layer(p * q);
      return std::tuple(out, std::vector<at::Tensor>{at::tanh(q), (p - q).detach()}, 3);
    };
    at::manual_seed(3);
    const auto [a, rest, three] = checkpoints ? checkpoint(part, x, y, nothing) : part(x, y, nothing);
    EXPECT_EQ(three, 3);
    (a.square().sum() + (rest[0] * rest[1]).sum()).backward();
    return std::vector<at::Tensor>{a.detach(), rest[0].detach(), x.grad(),
                                   y.grad(),   layer.up.grad(),  layer.down.grad()};
  };
  expect_same_bits(results(true), results(false));
}

TEST(Checkpoint, RunsItsFunctionOnceInForwardAndOnceInBackward) {
  int calls = 0;
  const Layer layer(0.3);
  const auto part = [&](const at::Tensor& x) {
    ++calls;
    return layer(x);
  };
  const at::Tensor loss = checkpoint(part, leaf({kRows, kWidth}, 0.7)).sum();
  EXPECT_EQ(calls, 1);
  loss.backward();
  EXPECT_EQ(calls, 2);
}

TEST(Checkpoint, IsAPlainCallWhereNothingIsRecorded) {
  const at::NoGradGuard no_grad;
  const Layer layer(0.3);
  const at::Tensor x = wave({kRows, kWidth}, 0.7);
  at::manual_seed(3);
  const at::Tensor want = layer(x);
  at::manual_seed(3);
  EXPECT_TRUE(at::equal(checkpoint(layer, x), want));
}

TEST(Checkpoint, RepeatsForEveryBackwardOverARetainedGraph) {
  const auto grads = [](const RunPart& run) {
    Toy s;
    at::manual_seed(5);
    const at::Tensor loss = run(s.b, run(s.a, s.x)).square().sum();
    loss.backward({}, /*retain_graph=*/true);
    loss.backward();
    return std::vector<at::Tensor>{s.a.up.grad(), s.a.down.grad(), s.b.up.grad(), s.b.down.grad()};
  };
  expect_same_bits(grads(checkpointed), grads(plainly));
}

TEST(Checkpoint, LetsGradientsBeDifferentiated) {
  const auto grads = [](const RunPart& run) {
    Toy s;
    s.x.requires_grad_(true);
    at::manual_seed(5);
    const auto first = torch::autograd::grad({run(s.a, s.x).square().sum()}, {s.x}, {}, {}, /*create_graph=*/true);
    first[0].square().sum().backward();
    return std::vector<at::Tensor>{s.a.up.grad(), s.a.down.grad(), s.x.grad()};
  };
  expect_same_bits(grads(checkpointed), grads(plainly));
}

TEST(Checkpoint, RunsAgainUnderTheAutocastOfItsForward) {
  const auto results = [](const RunPart& run) {
    Toy s;
    at::manual_seed(5);
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::increment_nesting();
    const at::Tensor out = run([&s](const at::Tensor& x) { return s.a(s.a(x)); }, s.x);
    at::autocast::decrement_nesting();
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    EXPECT_EQ(out.scalar_type(), at::kFloat);
    out.sum().backward();
    EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
    EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
    return std::vector<at::Tensor>{out.detach(), s.a.up.grad(), s.a.down.grad()};
  };
  expect_same_bits(results(checkpointed), results(plainly));
}

// What an engine's reducer relies on: a parameter that two checkpoints share is reported once, when its gradient is
// whole.
TEST(Checkpoint, AccumulatesTheGradientOfASharedParameterOnce) {
  struct Count : torch::autograd::PostAccumulateGradHook {
    explicit Count(int& calls) : calls(calls) {}
    void operator()(const at::Tensor&) override { ++calls; }
    int& calls;
  };
  Toy s;
  int calls = 0;
  torch::autograd::impl::set_post_acc_grad_hooks(s.a.up, std::make_unique<Count>(calls));
  checkpoint(s.a, checkpoint(s.a, s.x)).sum().backward();
  EXPECT_EQ(calls, 1);
}

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.what();
  }
  return "no error";
}

TEST(Checkpoint, RefusesAFunctionThatDoesSomethingElseTheSecondTime) {
  const at::Tensor x = leaf({3, 4}, 0.7);
  int calls = 0;
  const auto more_operations = [&](const at::Tensor& in) {
    return ++calls % 2 == 1 ? at::tanh(in) : at::tanh(in).exp();
  };
  EXPECT_THAT(message_of([&] { checkpoint(more_operations, x).sum().backward(); }),
              HasSubstr("saved 1 tensor for backward, but 2 when it ran again"));
  const auto fewer_operations = [&](const at::Tensor& in) {
    return ++calls % 2 == 1 ? at::tanh(in).exp() : at::tanh(in);
  };
  EXPECT_THAT(message_of([&] { checkpoint(fewer_operations, x).sum().backward(); }),
              HasSubstr("saved 2 tensors for backward, but 1 when it ran again"));
  const auto other_shape = [&](const at::Tensor& in) { return at::tanh(++calls % 2 == 1 ? in : in.narrow(0, 0, 2)); };
  EXPECT_THAT(message_of([&] { checkpoint(other_shape, x).sum().backward(); }),
              HasSubstr("saved a tensor Float (3, 4) for backward, but Float (2, 4) when it ran again"));
}

TEST(Checkpoint, LeavesTheRandomNumbersAloneWhenItsFunctionFails) {
  int calls = 0;
  const auto fails = [&](const at::Tensor& in) {
    if (++calls == 2) throw Error(ErrorKind::kUsage, {"second call", "", ""});
    return at::tanh(at::dropout(in, 0.5, true));
  };
  at::manual_seed(1);
  const at::Tensor loss = checkpoint(fails, leaf({3, 4}, 0.7)).sum();
  const at::Tensor state = at::globalContext().defaultGenerator(at::kCPU).get_state();
  EXPECT_THAT(message_of([&] { loss.backward(); }), HasSubstr("second call"));
  EXPECT_TRUE(at::equal(at::globalContext().defaultGenerator(at::kCPU).get_state(), state));
  checkpoint([](const at::Tensor& in) { return at::tanh(in); }, leaf({3, 4}, 0.7)).sum().backward();  // goes on
}

TEST(Checkpoint, RefusesAnInputThatWasChangedInPlace) {
  const at::Tensor x = wave({3, 4}, 0.7), w = leaf({4}, 0.2);
  const at::Tensor loss = checkpoint([w](const at::Tensor& in) { return at::tanh(in * w); }, x).sum();
  x.add_(1);
  EXPECT_THAT(message_of([&] { loss.backward(); }), HasSubstr("changed in place"));
}

// Memory
// ----------------------------------------------------------------------------------------------------------------

struct Usage {
  int64_t after_forward = 0;  // what waits for backward
  int64_t peak = 0;
  int64_t left = 0;  // when the graph is gone
};

constexpr int64_t kActivationBytes = 256 * 64 * 4;  // of one tensor in the stack below

Usage usage_of_a_stack(const RunPart& run, int layers) {
  const auto bytes = std::make_shared<LiveBytes>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, bytes);
  const at::Tensor x = leaf({256, 64}, 0.1), w = leaf({64, 64}, 0.2);
  const int64_t before = bytes->live;
  Usage usage;
  {
    at::Tensor y = x;
    for (int i = 0; i < layers; ++i) {  // four tensors of a layer wait for backward
      y = run([w](const at::Tensor& in) { return at::tanh(at::sigmoid(at::tanh(at::matmul(in, w)))); }, y);
    }
    const at::Tensor loss = y.sum();
    y = at::Tensor();
    usage.after_forward = bytes->live - before;
    loss.backward();
  }
  x.mutable_grad() = at::Tensor();
  w.mutable_grad() = at::Tensor();
  usage.peak = bytes->peak - before;
  usage.left = bytes->live - before;
  return usage;
}

// A layer keeps its input, which is its predecessor's output, and two tensors more; with a checkpoint its input alone.
// The peak then is those inputs and what one layer's backward needs.
TEST(Checkpoint, KeepsTheInputsAlone) {
  constexpr int kLayers = 10;
  constexpr int64_t kSlack = 64 * 1024;  // random states (5 kB each), the loss, w's gradient
  const Usage plain = usage_of_a_stack(plainly, kLayers);
  const Usage less = usage_of_a_stack(checkpointed, kLayers);
  EXPECT_NEAR(static_cast<double>(plain.after_forward), 3.0 * kLayers * kActivationBytes, kSlack);
  EXPECT_NEAR(static_cast<double>(less.after_forward), 1.0 * (kLayers - 1) * kActivationBytes, kSlack);
  EXPECT_GE(plain.peak, 3 * kLayers * kActivationBytes);
  EXPECT_LE(less.peak, (kLayers + 6) * kActivationBytes + kSlack);
  EXPECT_EQ(plain.left, 0);
  EXPECT_EQ(less.left, 0);
}

TEST(ActivationStore, KeepsInputsInOneBufferThatIsUsedAgain) {
  const auto store = std::make_shared<ActivationStore>(ActivationStoreOptions{.slots = 2});
  const ActivationStore::Scope scope(store);
  const auto model = [](Toy& s, const RunPart& run) { return run(s.b, run(s.a, s.x)).square().sum(); };
  expect_same_bits(results_of(model, checkpointed, true), results_of(model, plainly, true));

  const auto bytes = std::make_shared<LiveBytes>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, bytes);
  const at::Tensor first = wave({4, 8}, 0.3), second = wave({8, 4}, 0.4).t(), small = wave({2}, 0.1);
  const int64_t before = bytes->live;
  {
    const KeptTensor a = store->keep(0, first), b = store->keep(0, second);
    EXPECT_EQ(bytes->live, before);  // both lie in the buffer of the steps above: (5, 12) floats a slot
    first.zero_();                   // a copy is kept
    EXPECT_TRUE(at::equal(a.restore(), wave({4, 8}, 0.3)));
    EXPECT_TRUE(at::equal(b.restore(), second));
    EXPECT_EQ(b.restore().strides(), second.strides());
    EXPECT_EQ(static_cast<char*>(b.restore().data_ptr()) - static_cast<char*>(a.restore().data_ptr()), 256);
    try {
      store->keep(0, small);
      FAIL() << "a third tensor was kept in two slots";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kConfig);
      EXPECT_EQ(error.report().where, "activation_checkpointing.number_checkpoints");
    }
  }
  EXPECT_TRUE(at::equal(store->keep(0, small).restore(), small));
  const at::Tensor ids = at::arange(4);
  EXPECT_EQ(store->keep(1, ids).restore().data_ptr(), ids.data_ptr());  // whole numbers stay where they are
}

TEST(ActivationStore, GrowsWithItsInputs) {
  ActivationStore store({.slots = 2});
  const at::Tensor small = wave({2}, 0.1), large = wave({100}, 0.2);
  const KeptTensor a = store.keep(0, small), b = store.keep(0, large);
  EXPECT_TRUE(at::equal(a.restore(), small));
  EXPECT_TRUE(at::equal(b.restore(), large));
}

TEST(ActivationStore, CountsWhatCheckpointsCost) {
  const auto store = std::make_shared<ActivationStore>(ActivationStoreOptions{.in_host_memory = true});
  const ActivationStore::Scope scope(store);
  Toy s;
  checkpoint(s.b, checkpoint(s.a, s.x)).sum().backward();
  const CheckpointCosts costs = store->take_costs();
  EXPECT_EQ(costs.checkpoints, 2);
  EXPECT_EQ(costs.recomputations, 2);
  EXPECT_GT(costs.forward_seconds, 0);
  EXPECT_GT(costs.recomputation_seconds, 0);
  EXPECT_EQ(store->take_costs().checkpoints, 0);
}

}  // namespace
}  // namespace tessera::nn::activation_checkpoint_test
