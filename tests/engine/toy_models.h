// Small models, each with one of the traits on which sharded training breaks elsewhere. They can be run by an engine
// and, the same class, by a plain loop.
#pragma once

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <vector>

#include "tessera/nn/activation_checkpoint.h"
#include "tessera/nn/unit_module.h"

namespace tessera::test {

inline constexpr int64_t kWidth = 12;

// tanh(x W + b), its values made from its name so that every rank and the reference begin alike.
class Block : public nn::UnitModule<Block> {
 public:
  explicit Block(int seed) {
    weight = register_parameter("weight", values({kWidth, kWidth}, seed));
    bias = register_parameter("bias", values({kWidth}, seed + 1));
  }
  at::Tensor forward(const at::Tensor& x) { return at::tanh(at::matmul(x, weight) + bias); }

  static at::Tensor values(std::vector<int64_t> shape, int seed) {
    int64_t numel = 1;
    for (const int64_t size : shape) numel *= size;
    return (at::sin(at::arange(numel, at::kFloat) * 1.7 + static_cast<double>(seed)) * 0.4).view(shape);
  }

  at::Tensor weight, bias;
};

// What a forward is told: the rank's own input, and what this step of this rank is to do differently.
struct ToyInput {
  at::Tensor x;  // (rows, kWidth)
  bool flag = false;

  template <class F>
  void for_each_tensor(F f) const {
    f(x);
  }
};

class ToyModel : public torch::nn::Module {
 public:
  virtual at::Tensor loss(const ToyInput& input) = 0;

  // Calls a unit, or any part of the model: as an activation checkpoint where `checkpoints` is set.
  template <class Part>
  auto run(Part part, const at::Tensor& x) {
    return checkpoints ? nn::checkpoint(std::move(part), x) : part(x);
  }
  template <class Unit>
  auto run(const std::shared_ptr<Unit>& unit, const at::Tensor& x) {
    return run([unit](const at::Tensor& in) { return (*unit)(in); }, x);
  }
  bool checkpoints = false;
};

// The same model, its parts activation checkpoints.
template <class Model>
class Checkpointed : public Model {
 public:
  Checkpointed() { this->checkpoints = true; }
};

inline at::Tensor mean_square(const at::Tensor& y) { return (y * y).mean() + y.mean(); }

class ThreeBlocks : public ToyModel {
 public:
  ThreeBlocks() {
    for (int i = 0; i < 3; ++i) {
      blocks.push_back(register_module("block" + std::to_string(i), std::make_shared<Block>(10 * i)));
    }
  }
  at::Tensor loss(const ToyInput& input) override {
    at::Tensor y = input.x;
    for (const auto& block : blocks) y = run(block, y);
    return mean_square(y);
  }

  std::vector<std::shared_ptr<Block>> blocks;
};

class BlockUsedTwice : public ThreeBlocks {
 public:
  at::Tensor loss(const ToyInput& input) override {
    at::Tensor y = run(blocks[1], run(blocks[0], input.x));
    y = run(blocks[0], y) + 0.5 * y;
    return mean_square(run(blocks[2], (*blocks[0])(y)));
  }
};

class OtherOrder : public ThreeBlocks {
 public:
  at::Tensor loss(const ToyInput& input) override {
    return input.flag ? mean_square(run(blocks[0], run(blocks[2], run(blocks[1], input.x))))
                      : mean_square(run(blocks[2], run(blocks[1], run(blocks[0], input.x))));
  }
};

// A unit whose parameter `extra` is used only where the flag says so.
class SometimesUsed : public nn::UnitModule<SometimesUsed> {
 public:
  SometimesUsed() {
    weight = register_parameter("weight", Block::values({kWidth, kWidth}, 3));
    extra = register_parameter("extra", Block::values({kWidth}, 5));
  }
  at::Tensor forward(const ToyInput& input) {
    const at::Tensor y = at::matmul(input.x, weight);
    return input.flag ? y * (1 + extra) : y;
  }
  at::Tensor weight, extra;
};

class ParameterThatOneRankDoesNotUse : public ToyModel {
 public:
  ParameterThatOneRankDoesNotUse() {
    first = register_module("first", std::make_shared<SometimesUsed>());
    second = register_module("second", std::make_shared<Block>(7));
    never = register_parameter("never", Block::values({kWidth}, 9));
  }
  at::Tensor loss(const ToyInput& input) override {
    const auto part = [first = first, flag = input.flag](const at::Tensor& x) {
      return (*first)(ToyInput{.x = x, .flag = flag});
    };
    return mean_square(run(second, run(part, input.x)));
  }

  std::shared_ptr<SometimesUsed> first;
  std::shared_ptr<Block> second;
  at::Tensor never;
};

// The first unit's weight is the last one's too, as in a language model's decoder.
class TiedHead : public nn::UnitModule<TiedHead> {
 public:
  explicit TiedHead(const at::Tensor& shared) {
    weight = register_parameter("weight", shared);
    bias = register_parameter("bias", Block::values({kWidth}, 21));
  }
  at::Tensor forward(const at::Tensor& x) { return at::linear(x, weight, bias); }
  at::Tensor weight, bias;
};

class TiedWeights : public ToyModel {
 public:
  TiedWeights() {
    first = register_module("first", std::make_shared<Block>(2));
    second = register_module("second", std::make_shared<Block>(4));
    head = register_module("head", std::make_shared<TiedHead>(first->weight));
  }
  at::Tensor loss(const ToyInput& input) override { return mean_square(run(head, run(second, run(first, input.x)))); }

  std::shared_ptr<Block> first, second;
  std::shared_ptr<TiedHead> head;
};

// A frozen block first, one in the middle, and a frozen weight beside a trainable bias.
class Frozen : public ThreeBlocks {
 public:
  Frozen() {
    last = register_module("last", std::make_shared<Block>(50));
    blocks[0]->weight.set_requires_grad(false);
    blocks[0]->bias.set_requires_grad(false);
    blocks[2]->weight.set_requires_grad(false);
    blocks[2]->bias.set_requires_grad(false);
    last->weight.set_requires_grad(false);
  }
  at::Tensor loss(const ToyInput& input) override {
    at::Tensor y = input.x;
    for (const auto& block : blocks) y = run(block, y);
    return mean_square(run(last, y + run(blocks[2], y)));
  }
  std::shared_ptr<Block> last;
};

// A unit that returns several tensors, nested; gradients come back through some of them only.
class ManyOutputs : public nn::UnitModule<ManyOutputs> {
 public:
  ManyOutputs() { weight = register_parameter("weight", Block::values({kWidth, 3 * kWidth}, 6)); }
  std::tuple<at::Tensor, std::vector<at::Tensor>> forward(const at::Tensor& x) {
    const auto parts = at::matmul(x, weight).chunk(3, 1);
    return {at::sigmoid(parts[0]), {at::tanh(parts[1]), parts[2].detach()}};
  }
  at::Tensor weight;
};

class SeveralOutputs : public ToyModel {
 public:
  SeveralOutputs() {
    many = register_module("many", std::make_shared<ManyOutputs>());
    block = register_module("block", std::make_shared<Block>(8));
  }
  at::Tensor loss(const ToyInput& input) override {
    const auto [a, rest] = run(many, input.x);
    return mean_square(run(block, a)) + mean_square(rest[0] * rest[1]);
  }
  std::shared_ptr<ManyOutputs> many;
  std::shared_ptr<Block> block;
};

// Parts that are more than a unit, with dropout in and between the units, and a part inside a part.
class PartsOfSeveralUnits : public ThreeBlocks {
 public:
  at::Tensor loss(const ToyInput& input) override {
    const auto drop = [](const at::Tensor& x) { return at::dropout(x, 0.25, /*train=*/true); };
    const auto two = [this, drop](const at::Tensor& x) {
      return at::tanh(drop((*blocks[1])(drop((*blocks[0])(x))))) * x;
    };
    const auto all = [this, drop, two](const at::Tensor& x) {
      return at::sigmoid(drop(run(blocks[2], run(two, x)))) + x;
    };
    return mean_square(run(two, run(all, drop(input.x))));
  }
};

// No unit announces itself: the whole model is one.
class NoUnits : public ToyModel {
 public:
  NoUnits() {
    weight = register_parameter("weight", Block::values({kWidth, kWidth}, 1));
    scale = register_parameter("scale", Block::values({1}, 2));
  }
  at::Tensor loss(const ToyInput& input) override {
    return run([this](const at::Tensor& x) { return mean_square(at::matmul(x, weight) * scale); }, input.x);
  }
  at::Tensor weight, scale;
};

// The whole model is one announcing module.
class RootIsAUnit : public nn::UnitModule<RootIsAUnit> {
 public:
  RootIsAUnit() {
    weight = register_parameter("weight", Block::values({kWidth, kWidth}, 1));
    block = register_module("block", std::make_shared<Block>(3));
  }
  at::Tensor forward(const at::Tensor& x) { return mean_square((*block)(at::matmul(x, weight))); }
  at::Tensor weight;
  std::shared_ptr<Block> block;
};

}  // namespace tessera::test
