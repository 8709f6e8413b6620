#include "tessera/models/gemma3.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>

namespace tessera::models::gemma3_test {
namespace {

class Opened : public Gemma3ForCausalLM {
 public:
  using Gemma3ForCausalLM::embed;
  using Gemma3ForCausalLM::Gemma3ForCausalLM;
};

// transformers' Gemma3TextModel: "Gemma3 downcasts the below to bfloat16, causing sqrt(3072)=55.4256 to become 55.5".
TEST(Gemma3, ScalesEmbeddingsByTheRootOfTheirWidthAsTheirDtypeHasIt) {
  for (const auto& [dtype, factor] : {std::pair(at::kBFloat16, 55.5f), std::pair(at::kFloat, 55.425625f)}) {
    Opened network(read_gemma3_config({.values = {{"vocab_size", 4},
                                                  {"hidden_size", 3072},
                                                  {"num_hidden_layers", 0},
                                                  {"num_attention_heads", 8},
                                                  {"num_key_value_heads", 8}},
                                       .path = "config.json"}));
    nn::materialize(
        network, [](const std::string&, at::Tensor value) { value.fill_(1); }, dtype);
    const at::Tensor embedded = network.embed(at::tensor({1, 2}, at::kLong), {});
    EXPECT_EQ(embedded.scalar_type(), dtype);
    EXPECT_TRUE(embedded.eq(factor).all().item<bool>()) << embedded[0][0].item<float>();
  }
}

}  // namespace
}  // namespace tessera::models::gemma3_test
