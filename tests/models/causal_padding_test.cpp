// Rows of different lengths, one after the other in one batch: what padding costs, and that it changes nothing.
#include <ATen/ATen.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "tessera/models/llama.h"
#include "tests/support/live_bytes.h"

namespace tessera::models::causal_padding_test {
namespace {

constexpr int64_t kLength = 2048, kPadding = 300;
constexpr int64_t kMaskBytes = kLength * kLength;  // of one row, in bool

std::shared_ptr<LlamaForCausalLM> network() {
  auto made = std::make_shared<LlamaForCausalLM>(read_llama_config({.values = {{"model_type", "llama"},
                                                                               {"vocab_size", 8},
                                                                               {"hidden_size", 16},
                                                                               {"intermediate_size", 16},
                                                                               {"num_hidden_layers", 2},
                                                                               {"num_attention_heads", 2},
                                                                               {"max_position_embeddings", kLength}},
                                                                    .path = "config.json"}));
  int seed = 0;
  const auto fill = [&](const std::string&, at::Tensor value) {
    value.copy_((at::arange(value.numel(), at::kFloat) + 7 * seed++).sin().view(value.sizes()));
  };
  nn::materialize(*made, fill, at::kFloat);
  return made;
}

at::Tensor ids() { return at::arange(kLength, at::kLong).mul(5).remainder(8).unsqueeze(0); }

struct Found {
  at::Tensor logits;
  int64_t peak;
};

Found run(const at::Tensor& tokens, const at::Tensor& present) {
  NamedTensors batch;
  batch.set("input_ids", tokens);
  if (present.defined()) batch.set("attention_mask", present);
  const auto model = network();
  const at::NoGradGuard no_grad;
  const auto bytes = std::make_shared<test::LiveBytes>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, bytes);
  return {.logits = model->logits(batch), .peak = bytes->peak};
}

at::Tensor present(int64_t first, int64_t count) {
  at::Tensor mask = at::zeros({1, kLength}, at::kLong);
  mask.narrow(1, first, count).fill_(1);
  return mask;
}

TEST(CausalPadding, BehindAllTokensCostsNoMaskAndChangesNothing) {
  const int64_t there = kLength - kPadding;
  const Found padded = run(ids(), present(0, there));
  const Found alone = run(ids().narrow(1, 0, there), {});
  EXPECT_LT(padded.peak, kMaskBytes);
  EXPECT_TRUE(at::allclose(padded.logits.narrow(1, 0, there), alone.logits, 1e-5, 1e-6));
  EXPECT_TRUE(padded.logits.isfinite().all().item<bool>());
}

TEST(CausalPadding, BeforeThemIsHiddenByOne) {
  const int64_t there = kLength - kPadding;
  const Found padded = run(ids(), present(kPadding, there));
  EXPECT_GT(padded.peak, kMaskBytes);
  const Found other = run(at::cat({ids().narrow(1, 0, kPadding).fliplr(), ids().narrow(1, kPadding, there)}, 1),
                          present(kPadding, there));
  EXPECT_TRUE(
      at::allclose(padded.logits.narrow(1, kPadding, there), other.logits.narrow(1, kPadding, there), 1e-5, 1e-6));
  const Found seen = run(ids(), {});
  EXPECT_FALSE(
      at::allclose(padded.logits.narrow(1, kPadding, there), seen.logits.narrow(1, kPadding, there), 1e-3, 1e-3));
}

}  // namespace
}  // namespace tessera::models::causal_padding_test
