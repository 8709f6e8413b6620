#include "tessera/models/block_cut.h"

#include <fmt/format.h>

#include "tessera/base/error.h"

namespace tessera::models {
namespace {

BlockCut::Layer called_once(BlockCut::Layer layer) {
  layer->set_called_once();
  return layer;
}

BlockCut::Layer with_outputs(const nn::TensorAxis& axis, int64_t in, const nn::Cut& outputs, bool bias,
                             nn::WeightForm form, int64_t stacked = 1) {
  return called_once(std::make_shared<nn::Linear>(
      in, stacked * outputs.whole(), bias, nn::LinearCut{.axis = axis, .outputs = outputs, .stacked = stacked}, form));
}

BlockCut::Layer with_inputs(const nn::TensorAxis& axis, const nn::Cut& inputs, int64_t out, bool bias,
                            nn::WeightForm form, nn::LinearCut::Sum sum = nn::LinearCut::Sum::kOwnTokens) {
  return called_once(std::make_shared<nn::Linear>(inputs.whole(), out, bias,
                                                  nn::LinearCut{.axis = axis, .inputs = inputs, .sum = sum}, form));
}

}  // namespace

BlockCut::BlockCut(const nn::TensorAxis& axis, const std::string& name, const BlockSizes& sizes)
    : attention_(axis.called("the attention of " + name)),
      feed_forward_(axis.called("the feed-forward of " + name)),
      heads_(axis.cut_heads(sizes.heads, sizes.key_heads)),
      queries_(heads_.query.times(sizes.head_size)),
      keys_(heads_.key.times(sizes.head_size)),
      features_(axis.cut_features(sizes.features, "features of the feed-forward")),
      form_(sizes.form) {}

BlockCut::Layer BlockCut::queries(int64_t hidden, bool bias) const {
  return with_outputs(attention_, hidden, queries_, bias, form_);
}

BlockCut::Layer BlockCut::keys(int64_t hidden, bool bias) const {
  return with_outputs(attention_, hidden, keys_, bias, form_);
}

BlockCut::Layer BlockCut::queries_keys_values(int64_t hidden, bool bias) const {
  TESSERA_INVARIANT(heads_.query.whole() == heads_.key.whole());
  return with_outputs(attention_, hidden, queries_, bias, form_, /*stacked=*/3);
}

BlockCut::Layer BlockCut::attended(int64_t hidden, bool bias) const {
  return with_inputs(attention_, queries_, hidden, bias, form_);
}

BlockCut::Layer BlockCut::inner(int64_t hidden, bool bias) const {
  return with_outputs(feed_forward_, hidden, features_, bias, form_);
}

BlockCut::Layer BlockCut::outer(int64_t hidden, bool bias) const {
  return with_inputs(feed_forward_, features_, hidden, bias, form_);
}

BlockCut::Layer BlockCut::outer_of_expert(int64_t hidden) const {
  return with_inputs(feed_forward_, features_, hidden, /*bias=*/false, form_, nn::LinearCut::Sum::kLeft);
}

BlockCut::Layer BlockCut::of_key_heads(int64_t hidden, int64_t features_of_head, bool bias,
                                       const std::string& path) const {
  const int64_t all = heads_.key.whole();
  if (attention_.size() > all) {
    throw Error(ErrorKind::kConfig, {fmt::format("'{}' cannot be cut over more ranks than it has key heads", path),
                                     "parallel.tensor", fmt::format("use at most {} ranks", all)});
  }
  return with_outputs(attention_, hidden, heads_.key.times(features_of_head), bias, form_);
}

}  // namespace tessera::models
