// A model of two matrices: a row of numbers for each token, and logits of it. config.json: {"model_type": "toy-table",
// "vocab_size": 57, "width": 16}.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cross_entropy_loss.h>

#include "tests/train/toy/parts.h"

namespace tessera::toy {
namespace {

class Rows : public nn::UnitModule<Rows> {
 public:
  Rows(int64_t vocab, int64_t width) { rows_ = register_module("rows", std::make_shared<nn::Embedding>(vocab, width)); }
  at::Tensor forward(const at::Tensor& ids) { return rows_->forward(ids); }

 private:
  std::shared_ptr<nn::Embedding> rows_;
};

class Logits : public nn::UnitModule<Logits> {
 public:
  Logits(int64_t vocab, int64_t width) {
    linear_ = register_module("linear", std::make_shared<nn::Linear>(width, vocab));
  }
  at::Tensor forward(const at::Tensor& hidden) { return linear_->forward(hidden); }

 private:
  std::shared_ptr<nn::Linear> linear_;
};

class TableNetwork : public models::Network {
 public:
  TableNetwork(int64_t vocab, int64_t width) {
    rows_ = register_module("table", std::make_shared<Rows>(vocab, width));
    logits_ = register_module("logits", std::make_shared<Logits>(vocab, width));
  }

  at::Tensor loss_sum(const models::NamedTensors& batch) override {
    const at::Tensor logits = (*logits_)((*rows_)(batch.at("input_ids")));
    return at::cross_entropy_loss(logits.flatten(0, 1).to(at::kFloat), batch.at("labels").flatten(), /*weight=*/{},
                                  at::Reduction::Sum);
  }
  void checkpoint_activations(bool) override {}  // there is nothing between two units to leave out

 private:
  std::shared_ptr<Rows> rows_;
  std::shared_ptr<Logits> logits_;
};

class Table final : public models::Model {
 public:
  Table(int64_t vocab, int64_t width) : vocab_(vocab), width_(width) {}

  void set_dropout(double) override {}
  std::shared_ptr<models::Network> network() const override { return std::make_shared<TableNetwork>(vocab_, width_); }
  void initialize(uint64_t seed, const std::string& name, at::Tensor value) const override {
    const at::NoGradGuard no_grad;
    auto generator = at::make_generator<at::CPUGeneratorImpl>(models::seed_of_parameter(seed, name));
    value.normal_(0, 0.5, generator);
  }
  bool decays(const std::string& name) const override { return !name.ends_with("bias"); }
  std::string base_prefix() const override { return ""; }
  int64_t vocab_size() const override { return vocab_; }
  int64_t max_positions() const override { return 0; }
  int64_t hidden_size() const override { return width_; }
  std::optional<models::Architecture> architecture() const override { return std::nullopt; }

 private:
  int64_t vocab_;
  int64_t width_;
};

}  // namespace

models::ModelType table_model() {
  return {.classes = {{.head = "Copying", .name = "ToyTableForCopying", .weights_from = {"ToyTableForCopying"}}},
          .read = [](const models::ModelConfig& config, const models::ModelClass&) -> std::unique_ptr<models::Model> {
            return std::make_unique<Table>(config.values.at("vocab_size"), config.values.at("width"));
          }};
}

}  // namespace tessera::toy
