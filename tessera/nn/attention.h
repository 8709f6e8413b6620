// Scaled dot-product attention (Vaswani et al. 2017, section 3.2.1) between the tokens of a batch, by LibTorch's fused
// kernels, and the keys and values that a generation keeps.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace tessera::nn {

class TensorAxis;

// Which tokens see which.
struct AttentionPattern {
  bool causal = false;  // a token sees itself and those before it; queries are the last of the keys' tokens
  int64_t window = 0;   // where causal: how many it sees at most, itself included; 0: no limit
  at::Tensor present;   // (batch, keys) bool, false for padding; undefined: there is none

  // Of packed documents: their lengths, in order, one row after the other; no document lies in two rows. A token sees
  // those of its own document alone. Empty: each row is one. Not together with `present`.
  std::vector<int64_t> documents;
};

struct AttentionOptions {
  double scale = 0;                   // of query · key; 0: 1 / sqrt(head size)
  double dropout = 0;                 // of the weights
  const TensorAxis* heads = nullptr;  // over whose ranks the heads are cut: each drops weights of its own
  at::Tensor bias;  // added to query · key; broadcast to (batch, heads, queries, keys), in their dtype; undefined: 0
};

// query (batch, queries, heads, head size), key and value (batch, keys, key heads, head size): a group of heads /
// key heads heads shares a key. -> (batch, queries, heads * head size). The output of a token that is padding has no
// meaning, but is finite.
at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const AttentionPattern& pattern, const AttentionOptions& options = {});

// The keys and values of the tokens so far, of one layer. Not for training.
class KeyValueCache {
 public:
  int64_t length() const { return length_; }

  // Appends along dimension 1 and gives all that there are, as views that the next call may invalidate.
  std::pair<at::Tensor, at::Tensor> append(const at::Tensor& key, const at::Tensor& value);

  // Forgets the tokens behind the first `length`, of which there must be as many. All keys are kept, also those that a
  // window hides from later tokens, so any number of tokens can be given back.
  void truncate(int64_t length);

  // Row i goes on as row rows[i] was; rows (batch) int64. For beam search.
  void reorder(const at::Tensor& rows);

 private:
  at::Tensor key_, value_;  // (batch, room, key heads, head size)
  int64_t length_ = 0;
};

}  // namespace tessera::nn
