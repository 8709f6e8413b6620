// Attention of rows that several ranks share, by which they exchange tokens for heads (Ulysses; Jacobs et al. 2023,
// arXiv 2309.14509): each then has whole rows of some heads, and afterwards its own tokens of all heads again.
//
// Exchanges are in the tensors' dtype and lose nothing; gradients of a key head that several ranks look at are added up
// in rank order.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "tessera/layout/range.h"

namespace tessera::comm {
class Group;
}

namespace tessera::nn {

// Which ranks have which tokens of a row while layers run, and which heads while attention does: consecutive ones each.
struct HeadExchange {
  std::shared_ptr<comm::Group> group;
  std::vector<layout::Range> tokens, heads;  // of each rank; several may have the same head

  // (batch, own tokens, heads, size) -> (batch, length, own heads, size), and the inverse, where heads that several
  // ranks have are added up. With gradients.
  at::Tensor to_heads(const at::Tensor& x) const;
  at::Tensor to_tokens(const at::Tensor& x) const;

  const layout::Range& own(const std::vector<layout::Range>& of_ranks) const;
};

// Those of queries and of keys and values. ErrorKind::kConfig, with the nearest that fit, where the heads do not go
// round over so many ranks.
struct HeadExchanges {
  HeadExchange queries, keys;
};
HeadExchanges exchanges_of(const std::shared_ptr<comm::Group>& group, const std::vector<layout::Range>& tokens,
                           int64_t heads, int64_t key_heads);

}  // namespace tessera::nn
