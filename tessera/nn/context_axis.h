// Sequences that several ranks share (context parallelism), by Ulysses (Jacobs et al. 2023): each rank has consecutive
// tokens of every row, and all layers but attention work on those alone. For attention the ranks exchange tokens for
// heads, so that each sees whole rows of some heads, and back.
//
//   const SharedRows rows(axis, length);
//   hidden = embed(rows.own(ids));
//   …
//   context = rows.attend(query, key, value, [&](q, k, v) { return attention(q, k, v, pattern); });
//
// Exchanges are in the tensors' dtype and lose nothing; gradients of a key head that several ranks look at are added up
// in rank order. Every rank of the axis runs the same layers in the same order, forward and backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "tessera/layout/range.h"

namespace tessera::comm {
class Group;
}

namespace tessera::nn {

class ContextAxis {
 public:
  ContextAxis() = default;  // of one rank
  explicit ContextAxis(const std::shared_ptr<comm::Group>& group);

  // For arithmetic alone: a network over it can be made, but not run.
  static ContextAxis of_size(int size);

  int rank() const;
  int size() const { return size_; }
  const std::shared_ptr<comm::Group>& group() const { return group_; }  // null: one rank

  // ErrorKind::kConfig where the heads of a rank of the tensor axis do not go round over so many context ranks, with
  // the nearest that fit.
  static void check_heads(int64_t heads, int64_t key_heads, int tensor_ranks, int context_ranks);

 private:
  int size_ = 1;
  std::shared_ptr<comm::Group> group_;
};

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

// Those of queries and of keys and values. ErrorKind::kConfig as ContextAxis::check_heads.
struct HeadExchanges {
  HeadExchange queries, keys;
};
HeadExchanges exchanges_of(const ContextAxis& axis, const std::vector<layout::Range>& tokens, int64_t heads,
                           int64_t key_heads);

// Rows of so many tokens over the axis: where they do not divide, the first ranks have one more, and of rows that are
// shorter than the axis the last ranks have none.
class SharedRows {
 public:
  SharedRows(const ContextAxis& axis, int64_t length);

  // This rank's tokens: (rows, length, …) -> (rows, own tokens, …), a view.
  at::Tensor own(const at::Tensor& rows) const;

  // query (batch, own tokens, heads, head size), key and value (batch, own tokens, key heads, head size). `attention`
  // is called with (batch, length, own heads, head size) and returns (batch, length, own heads * head size).
  // -> (batch, own tokens, heads * head size)
  using Attention = std::function<at::Tensor(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value)>;
  at::Tensor attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                    const Attention& attention) const;

 private:
  ContextAxis axis_;
  std::vector<layout::Range> tokens_;  // of each rank
};

}  // namespace tessera::nn
