// Counts recorded from transformers 5.23 on the meta device: sum of numel over distinct parameters, and DeepSpeed's
// largest layer, max over modules of sum(p.numel() for p in module.parameters(recurse=False)).
#include "tessera/plan/census.h"

#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "tessera/base/error.h"
#include "tessera/models/bert.h"
#include "tessera/storage/safetensors.h"
#include "tests/support/temporary_folder.h"

namespace tessera::plan::census_test {
namespace {

using nlohmann::json;

struct Recorded {
  const char* config;
  int64_t params;
  int64_t largest_layer;
};

const Recorded kRecorded[] = {
    {R"({"model_type": "bert"})", 109514298, 23471418},
    {R"({"model_type": "bert", "hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536})", 22744506,
     11750970},
    {R"({"model_type": "roberta"})", 124696665, 38653785},
    {R"({"model_type": "roberta", "max_position_embeddings": 514, "type_vocab_size": 1})", 124697433, 38653785},
    {R"({"model_type": "distilbert"})", 66985530, 23471418},
    {R"({"model_type": "gpt2"})", 124439808, 38597376},
    {R"({"model_type": "gpt2", "tie_word_embeddings": false, "n_embd": 1024, "n_layer": 24, "n_head": 16,
         "n_inner": 3000})",
     352389440, 51463168},
    {R"({"model_type": "llama"})", 6738415616, 131072000},
    {R"({"model_type": "llama", "intermediate_size": 14336, "num_key_value_heads": 8, "vocab_size": 128256})",
     8030261248, 525336576},
    {R"({"model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
         "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128256, "tie_word_embeddings": true})",
     1235814400, 262668288},
    {R"({"model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
         "num_attention_heads": 4, "attention_bias": true, "mlp_bias": true, "vocab_size": 1000})",
     1828608, 256000},
    {R"({"model_type": "mistral"})", 7241732096, 131072000},
    {R"({"model_type": "t5"})", 60506624, 16449536},
    // bigscience/T0_3B
    {R"({"model_type": "t5", "d_ff": 5120, "d_kv": 64, "d_model": 2048, "feed_forward_proj": "gated-gelu",
         "num_heads": 32, "num_layers": 24, "num_decoder_layers": 24, "tie_word_embeddings": false})",
     2783959040, 65798144},
};

TEST(Census, CountsAsTransformersDoes) {
  for (const Recorded& recorded : kRecorded) {
    const auto census = census_of_config(json::parse(recorded.config), "config.json");
    ASSERT_TRUE(census) << recorded.config;
    EXPECT_EQ(census->params, recorded.params) << recorded.config;
    EXPECT_EQ(census->largest_layer, recorded.largest_layer) << recorded.config;
    int64_t of_units = 0;
    for (const UnitCensus& unit : census->units) of_units += unit.numel;
    EXPECT_EQ(of_units, census->params) << recorded.config;
  }
}

TEST(Census, BertHasTheUnitsOfOurModel) {
  models::BertConfig config;
  config.hidden_size = 64;
  config.num_hidden_layers = 3;
  config.num_attention_heads = 4;
  config.intermediate_size = 160;
  models::BertForMaskedLM model(config);
  std::set<const void*> seen;
  int64_t params = 0;
  for (const at::Tensor& parameter : model.parameters()) {
    if (seen.insert(parameter.unsafeGetTensorImpl()).second) params += parameter.numel();
  }
  const auto census = census_of_config(
      {{"hidden_size", 64}, {"num_hidden_layers", 3}, {"num_attention_heads", 4}, {"intermediate_size", 160}}, "");
  ASSERT_TRUE(census);
  EXPECT_EQ(census->params, params);
  EXPECT_EQ(census->units.size(), 6);  // the root: embeddings but for words; words, three layers, head
  EXPECT_TRUE(census->head_shares_embeddings);
}

class CensusOfFolder : public testing::Test {
 protected:
  std::string folder() const { return folder_.path().string(); }
  void write(const std::string& name, const std::string& text) const { std::ofstream(folder_.path() / name) << text; }
  std::string failure() const {
    try {
      read_census(folder());
    } catch (const Error& error) {
      EXPECT_EQ(exit_code(error.kind()), 2);
      return error.what();
    }
    return "";
  }

  test::TemporaryFolder folder_;
};

TEST_F(CensusOfFolder, AnotherModelIsCountedFromTheHeadersOfItsWeights) {
  storage::SafetensorsWriter writer(folder() + "/model.safetensors", {{"embed.weight", at::kBFloat16, {10, 4}},
                                                                      {"layers.0.up.bias", at::kFloat, {8}},
                                                                      {"layers.0.up.weight", at::kFloat, {8, 4}},
                                                                      {"layers.1.up.weight", at::kFloat, {8, 4}}});
  for (const auto& [shape, dtype] : std::vector<std::pair<std::vector<int64_t>, at::ScalarType>>{
           {{10, 4}, at::kBFloat16}, {{8}, at::kFloat}, {{8, 4}, at::kFloat}, {{8, 4}, at::kFloat}}) {
    writer.add(at::zeros(shape, dtype));
  }
  writer.finish();
  write("config.json", R"({"model_type": "novel"})");
  const ModelCensus census = read_census(folder());
  EXPECT_EQ(census.params, 40 + 8 + 32 + 32);
  EXPECT_EQ(census.largest_layer, 40);  // a matrix and its bias are one module: 32 + 8
  ASSERT_EQ(census.units.size(), 3);
  EXPECT_EQ(census.units[1].name, "layers.0");
  EXPECT_FALSE(census.architecture);
}

TEST_F(CensusOfFolder, WhatIsMissingIsNamed) {
  EXPECT_THAT(failure(), testing::HasSubstr("neither config.json nor safetensors"));
  write("config.json", R"({"model_type": "novel"})");
  EXPECT_THAT(failure(), testing::HasSubstr("the sizes of a 'novel' are not known"));
  write("config.json", "{");
  EXPECT_THAT(failure(), testing::HasSubstr("it is not JSON: a mistake at column 2"));
  write("config.json", R"({"model_type": "llama", "hidden_size": -4})");
  EXPECT_THAT(failure(), testing::HasSubstr("'hidden_size' is -4"));
}

}  // namespace
}  // namespace tessera::plan::census_test
