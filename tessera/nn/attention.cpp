#include "tessera/nn/attention.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/nn/causal_mask.h"
#include "tessera/nn/tensor_axis.h"

namespace tessera::nn {
namespace {

// What of the pattern a mask must say; undefined where the kernel's own causal pattern is enough.
at::Tensor mask_of(const AttentionPattern& pattern, int64_t queries, int64_t keys, const at::Device& device) {
  const bool in_window = pattern.window == 0 || keys <= pattern.window;
  const bool alone = queries == 1 && in_window;  // the last token sees all
  const bool plain = queries == keys && in_window && !pattern.present.defined();
  if (pattern.causal && !alone && !plain) return causal_mask(pattern, {keys - queries, keys}, {0, keys}, device);
  return pattern.present.defined() ? pattern.present.unsqueeze(1).unsqueeze(1) : at::Tensor();  // (batch, 1, 1, keys)
}

at::Tensor attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                  const AttentionPattern& pattern, const AttentionOptions& options) {
  const int64_t queries = query.size(1), keys = key.size(1);
  at::Tensor mask = mask_of(pattern, queries, keys, query.device());
  const bool by_kernel = pattern.causal && !mask.defined() && queries > 1 && !options.bias.defined();
  if (options.bias.defined()) {
    if (pattern.causal && !mask.defined()) {
      mask = causal_mask(pattern, {keys - queries, keys}, {0, keys}, query.device());
    }
    constexpr double kUnseen = -1e30;
    mask = mask.defined() ? options.bias.masked_fill(mask.logical_not(), kUnseen) : options.bias;
  }
  const at::Tensor context = at::scaled_dot_product_attention(
      query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2),
      mask.defined() ? std::optional(mask) : std::nullopt, options.dropout, by_kernel,
      options.scale == 0 ? std::nullopt : std::optional(options.scale), query.size(2) != key.size(2));
  return context.transpose(1, 2).reshape({query.size(0), queries, -1});
}

// Each document by itself: nothing is computed between two, and no mask is made.
at::Tensor attend_in_documents(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                               const AttentionPattern& pattern, const AttentionOptions& options) {
  TESSERA_INVARIANT(!pattern.present.defined() && !options.bias.defined());
  const auto documents = [&](const at::Tensor& rows) {
    return rows.reshape({1, -1, rows.size(2), rows.size(3)}).split_with_sizes(pattern.documents, 1);
  };
  const auto queries = documents(query), keys = documents(key), values = documents(value);
  const AttentionPattern one{.causal = pattern.causal, .window = pattern.window, .present = {}, .documents = {}};
  std::vector<at::Tensor> contexts;
  for (size_t i = 0; i < queries.size(); ++i) {
    contexts.push_back(attend(queries[i], keys[i], values[i], one, options));
  }
  return at::cat(contexts, 1).view({query.size(0), query.size(1), -1});
}

}  // namespace

at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const AttentionPattern& pattern, const AttentionOptions& options) {
  const bool apart = options.heads != nullptr && options.dropout > 0;
  const PartRandomness own(apart ? *options.heads : TensorAxis(), apart, query.device());
  return pattern.documents.empty() ? attend(query, key, value, pattern, options)
                                   : attend_in_documents(query, key, value, pattern, options);
}

std::pair<at::Tensor, at::Tensor> KeyValueCache::append(const at::Tensor& key, const at::Tensor& value) {
  const int64_t needed = length_ + key.size(1);
  const auto with_room = [&](const at::Tensor& now, const at::Tensor& like) {
    at::Tensor larger =
        at::empty({like.size(0), std::max(needed, 2 * length_), like.size(2), like.size(3)}, like.options());
    if (length_ > 0) larger.narrow(1, 0, length_).copy_(now.narrow(1, 0, length_));
    return larger;
  };
  if (!key_.defined() || key_.size(1) < needed) {
    key_ = with_room(key_, key);
    value_ = with_room(value_, value);
  }
  key_.narrow(1, length_, key.size(1)).copy_(key);
  value_.narrow(1, length_, value.size(1)).copy_(value);
  length_ = needed;
  return {key_.narrow(1, 0, length_), value_.narrow(1, 0, length_)};
}

void KeyValueCache::truncate(int64_t length) {
  TESSERA_INVARIANT(length >= 0 && length <= length_);
  length_ = length;
}

void KeyValueCache::reorder(const at::Tensor& rows) {
  key_ = key_.index_select(0, rows);
  value_ = value_.index_select(0, rows);
}

}  // namespace tessera::nn
