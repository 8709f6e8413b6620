#include "tessera/models/bert.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tessera/base/error.h"
#include "tessera/models/model.h"

namespace tessera::models::bert_test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

const BertConfig kTiny{.vocab_size = 50,
                       .hidden_size = 16,
                       .num_hidden_layers = 2,
                       .num_attention_heads = 2,
                       .intermediate_size = 32,
                       .max_position_embeddings = 12};

void fill(BertForMaskedLM& model, uint64_t seed) {
  nn::materialize(model, [&](const std::string& name, at::Tensor value) {
    initialize_bert_parameter(model.config(), seed, name, std::move(value));
  });
}

TEST(Bert, IsDeclaredWithoutBytes) {
  const BertForMaskedLM model(kTiny);
  for (const auto& item : model.named_parameters()) EXPECT_EQ(item.value().storage().nbytes(), 0u) << item.key();
}

TEST(Bert, InitialValuesFollowTheReference) {
  const BertConfig config;  // BERT base's sizes, for statistics
  at::Tensor weight = at::empty({768, 768});
  initialize_bert_parameter(config, 1, "bert.encoder.layer.0.output.dense.weight", weight);
  EXPECT_NEAR(weight.mean().item<float>(), 0, 4 * 0.02 / 768);  // four standard errors of normal(0, 0.02)
  EXPECT_NEAR(weight.std().item<float>(), 0.02, 1e-4);
  at::Tensor again = at::empty({768, 768});
  initialize_bert_parameter(config, 1, "bert.encoder.layer.0.output.dense.weight", again);
  EXPECT_TRUE(at::equal(weight, again));
  initialize_bert_parameter(config, 1, "bert.encoder.layer.1.output.dense.weight", again);
  EXPECT_FALSE(at::equal(weight, again));
  at::Tensor embeddings = at::empty({100, 8});
  initialize_bert_parameter(config, 1, "bert.embeddings.word_embeddings.weight", embeddings);
  EXPECT_EQ(embeddings[0].abs().sum().item<float>(), 0);  // the padding row
  at::Tensor norm = at::empty({8});
  initialize_bert_parameter(config, 1, "bert.embeddings.LayerNorm.weight", norm);
  EXPECT_EQ(norm.sum().item<float>(), 8);
}

TEST(Bert, TheLossOnTargetsAloneIsTheLossOverAllPositions) {
  BertForMaskedLM model(kTiny);
  fill(model, 3);
  model.eval();
  const at::Tensor ids = at::arange(24, at::kLong).view({2, 12});
  at::Tensor labels = at::full({2, 12}, -100, at::kLong);
  labels[0][3] = 7;
  labels[1][11] = 9;
  const BertInput input{.input_ids = ids};
  const at::Tensor want =
      at::cross_entropy_loss(model.forward(input).view({24, 50}), labels.view({24}), {}, at::Reduction::Sum);
  EXPECT_NEAR(model.masked_loss_sum(input, labels).item<float>(), want.item<float>(), 1e-5);
}

TEST(Bert, ABatchWithoutTargetsHasLossZeroAndGradients) {
  BertForMaskedLM model(kTiny);
  fill(model, 3);
  const at::Tensor loss =
      model.masked_loss_sum({.input_ids = at::zeros({2, 4}, at::kLong)}, at::full({2, 4}, -100, at::kLong));
  EXPECT_EQ(loss.item<float>(), 0);
  loss.backward();
}

TEST(Bert, PaddingChangesNothing) {
  BertForMaskedLM model(kTiny);
  fill(model, 4);
  model.eval();
  const at::Tensor ids = at::arange(6, at::kLong).view({1, 6});
  const at::Tensor padded = at::cat({ids, at::zeros({1, 4}, at::kLong)}, 1);
  at::Tensor mask = at::ones({1, 10}, at::kLong);
  mask.narrow(1, 6, 4).zero_();
  const at::Tensor want = model.forward({.input_ids = ids});
  const at::Tensor got = model.forward({.input_ids = padded, .attention_mask = mask}).narrow(1, 0, 6);
  EXPECT_TRUE(at::allclose(got, want, 1e-5, 1e-6));
}

class ModelFolder : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("tessera_models_" + std::to_string(getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  void write(const std::string& name, const std::string& text) { std::ofstream(folder_ / name) << text; }

  std::string error(const std::function<void()>& call) {
    try {
      call();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }

  fs::path folder_;
};

TEST_F(ModelFolder, WithoutConfigOrOfAnotherModelIsRefused) {
  const auto read = [&] { read_bert_config(folder_.string()); };
  EXPECT_THAT(error(read), HasSubstr("no config.json"));
  write("config.json", "{");
  EXPECT_THAT(error(read), HasSubstr("it is not JSON: a mistake at column 2"));
  write("config.json", R"({"model_type": "llama"})");
  EXPECT_THAT(error(read), HasSubstr("the model is a 'llama'"));
  write("config.json", R"({"hidden_size": "big"})");
  EXPECT_THAT(error(read), HasSubstr("wrong type"));
  write("config.json", R"({"hidden_size": 10, "num_attention_heads": 3})");
  EXPECT_THAT(error(read), HasSubstr("do not describe a model"));
}

TEST_F(ModelFolder, WithoutOrWithDamagedWeightsIsRefused) {
  const auto read = [&] { PretrainedWeights(folder_.string(), "bert."); };
  EXPECT_THAT(error(read), HasSubstr("has no weights"));
  write("pytorch_model.bin", "not a zip");
  EXPECT_THAT(error(read), HasSubstr("not a state dict"));
  write("model.safetensors.index.json", "{}");
  EXPECT_THAT(error(read), HasSubstr("no weight_map"));
  write("model.safetensors.index.json", R"({"weight_map": {"a": "gone.safetensors"}})");
  EXPECT_THAT(error(read), HasSubstr("gone.safetensors"));
  write("model.safetensors", "short");
  EXPECT_THAT(error(read), HasSubstr("not a complete safetensors file"));
}

}  // namespace
}  // namespace tessera::models::bert_test
