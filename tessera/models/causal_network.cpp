#include "tessera/models/causal_network.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/full.h>

#include "tessera/nn/activation_checkpoint.h"
#include "tessera/nn/target_loss.h"

namespace tessera::models {

TokenEmbeddings::TokenEmbeddings(int64_t vocab_size, int64_t width, int64_t padding_index)
    : padding_index_(padding_index) {
  weight = register_parameter("weight", nn::declared_parameter({vocab_size, width}));
}

at::Tensor TokenEmbeddings::forward(const at::Tensor& ids) { return at::embedding(weight, ids, padding_index_); }

LanguageHead::LanguageHead(int64_t vocab_size, int64_t width, const at::Tensor& weight) {
  weight_ = register_parameter("weight", weight.defined() ? weight : nn::declared_parameter({vocab_size, width}));
}

at::Tensor LanguageHead::forward(const at::Tensor& hidden) { return nn::linear(hidden, weight_, {}); }

at::Tensor LanguageHead::forward(const at::Tensor& hidden, const at::Tensor& labels) {
  return nn::target_loss_sum(hidden, weight_, {}, labels);
}

std::vector<int64_t> document_lengths(const at::Tensor& positions) {
  const at::Tensor on_host = positions.cpu().contiguous();
  const auto* const values = on_host.const_data_ptr<int64_t>();
  const int64_t rows = positions.size(0), length = positions.size(1);
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < rows * length; ++i) {
    if (i % length == 0 || values[i] == 0) lengths.push_back(0);
    ++lengths.back();
  }
  if (static_cast<int64_t>(lengths.size()) == rows) lengths.clear();
  return lengths;
}

at::Tensor CausalNetwork::decode(const NamedTensors& batch, Caches* caches) {
  const at::Tensor& ids = batch.at("input_ids");
  const int64_t before = caches == nullptr ? 0 : caches->front().length();
  at::Tensor positions = batch.get("position_ids");
  DecoderInput input{.pattern = {.causal = true}};
  if (batch.get("attention_mask").defined()) {
    input.pattern.present = batch.get("attention_mask").to(at::kBool);
  } else if (positions.defined() && before == 0) {
    input.pattern.documents = document_lengths(positions);
  }
  if (!positions.defined()) positions = at::arange(before, before + ids.size(1), ids.options()).unsqueeze(0);
  input.turns = turns(positions);
  input.hidden = embed(ids, positions);
  for (size_t layer = 0; layer < layers(); ++layer) {
    input.cache = caches == nullptr ? nullptr : &(*caches)[layer];
    const at::Tensor hidden = std::move(input.hidden);
    const auto run = [this, layer, input](const at::Tensor& of) {
      DecoderInput with = input;
      with.hidden = of;
      return run_layer(layer, with);
    };
    input.hidden = checkpoints_activations_ ? nn::checkpoint(run, hidden) : run(hidden);
  }
  return normalized(input.hidden);
}

at::Tensor CausalNetwork::loss_sum(const NamedTensors& batch) {
  const at::Tensor& labels = batch.at("labels");
  const at::Tensor none = at::full({labels.size(0), 1}, nn::kNoTarget, labels.options());
  const at::Tensor next = at::cat({labels.narrow(1, 1, labels.size(1) - 1), none}, 1);
  return head()(decode(batch, nullptr), next);
}

at::Tensor CausalNetwork::logits(const NamedTensors& batch, Caches* caches) { return head()(decode(batch, caches)); }

at::Tensor CausalNetwork::next_logits(const NamedTensors& batch, Caches* caches) {
  return head()(decode(batch, caches).select(1, -1));
}

}  // namespace tessera::models
