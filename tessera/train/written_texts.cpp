#include "tessera/train/written_texts.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/train/evaluation.h"

namespace tessera::train {
namespace {

// Each pass is a forward of the engine's, which gathers the parameters and releases them.
class EngineDecoding final : public models::Decoding {
 public:
  EngineDecoding(NetworkEngine& engine, std::unique_ptr<models::Decoding> decoding)
      : engine_(engine), decoding_(std::move(decoding)) {}

  at::Tensor next_logits(const std::vector<int64_t>& chosen) override {
    return engine_.call([&](models::Network&) { return decoding_->next_logits(chosen); });
  }
  void reorder(const std::vector<int64_t>& rows) override { decoding_->reorder(rows); }
  void idle() override { decoding_->idle(); }

 private:
  NetworkEngine& engine_;
  std::unique_ptr<models::Decoding> decoding_;
};

class EngineNetwork final : public models::GenerativeNetwork {
 public:
  explicit EngineNetwork(NetworkEngine& engine)
      : engine_(engine), network_(dynamic_cast<models::GenerativeNetwork*>(&engine.module())) {
    TESSERA_INVARIANT(network_ != nullptr);
  }

  std::unique_ptr<models::Decoding> start(const models::PromptRows& prompts) override {
    return std::make_unique<EngineDecoding>(engine_, network_->start(prompts));
  }

 private:
  NetworkEngine& engine_;
  models::GenerativeNetwork* network_;
};

}  // namespace

std::vector<std::vector<int32_t>> write_rows(NetworkEngine& engine, const std::vector<std::vector<int32_t>>& prompts,
                                             models::GenerationOptions options) {
  EngineNetwork network(engine);
  options.device = engine.device();
  options.all_ended = [&engine](bool ended) {
    return sum_over_ranks(engine.data_group(), {.loss = ended ? 0.0 : 1.0}).loss == 0;
  };
  if (!prompts.empty()) return models::generate_rows(network, prompts, options);
  options.max_new_tokens = 1;  // after which it has ended
  options.on_token = nullptr;
  options.kept = nullptr;
  models::generate(network, {0}, options);
  return {};
}

std::vector<std::vector<int32_t>> write_texts(NetworkEngine& engine, const std::vector<std::vector<int32_t>>& prompts,
                                              size_t most, const WrittenTextsOptions& options) {
  const models::GenerationOptions how{.max_new_tokens = options.max_new_tokens,
                                      .stop_tokens = options.config.stop_tokens,
                                      .decoder_start = options.config.decoder_start};
  std::vector<std::vector<int32_t>> written;
  const auto at_once = static_cast<size_t>(options.at_once);
  for (size_t first = 0; first < most; first += at_once) {
    const size_t rows = first < prompts.size() ? std::min(at_once, prompts.size() - first) : 0;
    const auto begin = prompts.begin() + static_cast<std::ptrdiff_t>(std::min(first, prompts.size()));
    auto texts = write_rows(engine, {begin, begin + static_cast<std::ptrdiff_t>(rows)}, how);
    std::move(texts.begin(), texts.end(), std::back_inserter(written));
  }
  return written;
}

}  // namespace tessera::train
