// Ranks that share the tokens of each sequence (context parallelism), and how they attend to each other's: all layers
// but attention work on a rank's own tokens alone (nn/shared_rows.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace tessera::comm {
class Group;
}

namespace tessera::nn {

enum class ContextAttention {
  kUlysses,  // tokens are exchanged for heads (nn/head_exchange.h)
  kRing,     // keys and values go round (nn/ring_attention.h)
};

class ContextAxis {
 public:
  ContextAxis() = default;  // of one rank
  ContextAxis(const std::shared_ptr<comm::Group>& group, ContextAttention attention);

  // For arithmetic alone: a network over it can be made, but not run.
  static ContextAxis of_size(int size);

  int rank() const;
  int size() const { return size_; }
  ContextAttention attention() const { return attention_; }
  const std::shared_ptr<comm::Group>& group() const { return group_; }  // null: one rank

 private:
  int size_ = 1;
  std::shared_ptr<comm::Group> group_;
  ContextAttention attention_ = ContextAttention::kUlysses;
};

// What decides between the two.
struct SharedHeads {
  int64_t heads = 0, key_heads = 0;  // of the whole model
  int tensor_ranks = 1, context_ranks = 1;
  int64_t element_size = 4;  // bytes of a query's element
  std::string why_no_ring;   // of what it does not do; empty: it is possible
};

// Bytes that a rank sends in a layer's forward and backward pass for each of its tokens and each feature of a head: the
// mean over the ranks. ErrorKind::kConfig where heads do not go round (kUlysses).
//
//   n ranks, of e bytes an element; of a tensor rank: h heads, k key heads, K >= k key heads of its n ranks together
//   Ulysses: queries, keys, values and the result go to other ranks, and their gradients back:
//            2 e (2 h + 2 K) (n - 1) / n
//   ring:    keys and values go n - 1 times on in each pass, and their gradients, in fp32, n times:
//            2 e 2 k (n - 1) + 4 * 2 k n
double bytes_sent_for_token(ContextAttention attention, const SharedHeads& heads);

// The one that sends less of those that are possible; Ulysses where both send the same. `asked`: that one.
// ErrorKind::kConfig, at `where`, where that is not possible, or neither.
ContextAttention context_attention_of(const SharedHeads& heads, std::optional<ContextAttention> asked,
                                      const std::string& where);

const char* name_of(ContextAttention attention);

}  // namespace tessera::nn
