// How a transformer block is cut over a tensor axis: attention by heads, the feed-forward by features. The same for all
// models, whatever they call their layers.
//
//   const BlockCut cut(axis, "layer 3", {.heads = 32, .key_heads = 8, .head_size = 128, .features = 14336});
//   query_ = nn::add(*this, "self_attn.q_proj", cut.queries(hidden, bias));
//   …
//   x = into_cut_layers(cut.attention(), norm(h), tokens); h = h + attended(attention(queries(x), …))
//
// What the last layer of attention or of the feed-forward gives is of own tokens (nn/own_tokens.h). Over an axis of one
// rank, layers are whole.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "tessera/nn/layers.h"
#include "tessera/nn/tensor_axis.h"

namespace tessera::models {

struct BlockSizes {
  int64_t heads = 0;
  int64_t key_heads = 0;
  int64_t head_size = 0;
  int64_t features = 0;  // of the feed-forward
  nn::WeightForm form = nn::WeightForm::kOutIn;
};

class BlockCut {
 public:
  // `name`: of the block, for errors and reports. ErrorKind::kConfig where the sizes do not go round.
  BlockCut(const nn::TensorAxis& axis, const std::string& name, const BlockSizes& sizes);

  // The axis, by the name of the part of the block whose exchanges these are.
  const nn::TensorAxis& attention() const { return attention_; }
  const nn::TensorAxis& feed_forward() const { return feed_forward_; }

  // This rank's.
  int64_t heads() const { return heads_.query.own().numel(); }
  int64_t key_heads() const { return heads_.key.own().numel(); }

  using Layer = std::shared_ptr<nn::Linear>;
  Layer queries(int64_t hidden, bool bias) const;
  Layer keys(int64_t hidden, bool bias) const;                 // and values
  Layer queries_keys_values(int64_t hidden, bool bias) const;  // of as many key heads as heads, in one matrix
  Layer attended(int64_t hidden, bool bias) const;
  Layer inner(int64_t hidden, bool bias) const;  // up, and where there is one, gate
  Layer outer(int64_t hidden, bool bias) const;  // down
  Layer outer_of_expert(int64_t hidden) const;   // … each rank's part of it: LinearCut::Sum::kLeft

  // A matrix that makes so many features for each key head, one key head's after another's; `path` is for errors.
  Layer of_key_heads(int64_t hidden, int64_t features_of_head, bool bias, const std::string& path) const;

 private:
  nn::TensorAxis attention_, feed_forward_;
  nn::TensorAxis::Heads heads_;
  nn::Cut queries_, keys_, features_;  // in features
  nn::WeightForm form_;
};

}  // namespace tessera::models
