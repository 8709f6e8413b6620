#include "tessera/nn/vocabulary.h"

#include <ATen/ops/embedding.h>

#include "tessera/nn/layers.h"

namespace tessera::nn {

CutVocabulary::Rows CutVocabulary::own_rows(const at::Tensor& ids) const {
  const layout::Range own = words.own();
  return {.here = (ids >= own.begin).logical_and_(ids < own.end), .rows = (ids - own.begin).clamp_(0, own.numel() - 1)};
}

void CutVocabulary::specify(const std::vector<int64_t>& rest, layout::ParamSpec& spec) const {
  if (!is_cut()) return;
  spec.shape = {words.whole()};
  spec.shape.insert(spec.shape.end(), rest.begin(), rest.end());
  spec.shards = {words.shard(0)};
}

CutVocabulary cut_vocabulary(const TensorAxis& axis, int64_t words) {
  return {.axis = axis, .words = axis.cut(words, "words")};
}

at::Tensor embedded(const at::Tensor& ids, const at::Tensor& weight, int64_t padding_index,
                    const CutVocabulary& vocabulary) {
  if (!vocabulary.is_cut()) return at::embedding(weight, ids, padding_index);
  const layout::Range own = vocabulary.words.own();
  const bool has_padding = padding_index >= own.begin && padding_index < own.end;
  const auto [here, rows] = vocabulary.own_rows(ids);
  const at::Tensor found = at::embedding(weight, rows, has_padding ? padding_index - own.begin : -1);
  return found * here.unsqueeze(-1).to(found.scalar_type());
}

at::Tensor logits_of_words(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias,
                           const CutVocabulary& vocabulary) {
  return vocabulary.axis.joined(linear(hidden, weight, bias), vocabulary.words);
}

}  // namespace tessera::nn
