#include "tessera/nn/context_axis.h"

#include "tessera/base/error.h"
#include "tessera/comm/group.h"
#include "tessera/nn/tensor_axis.h"

namespace tessera::nn {
namespace {

template <class F>
void for_each_tensor_rank(const SharedHeads& heads, F f) {
  const TensorAxis::Heads cut = TensorAxis::of_size(heads.tensor_ranks).cut_heads(heads.heads, heads.key_heads);
  for (size_t rank = 0; rank < cut.query.parts.size(); ++rank) {
    f(cut.query.parts[rank].numel(), cut.key.parts[rank].numel());
  }
}

// ErrorKind::kConfig where they do not go round over the context ranks.
int64_t key_heads_of_ranks(const SharedHeads& heads, int64_t of_query, int64_t of_key) {
  int64_t count = 0;
  const TensorAxis axis = TensorAxis::of_size(heads.context_ranks).asked_by("parallel.context");
  for (const layout::Range& part : axis.cut_heads(of_query, of_key).key.parts) count += part.numel();
  return count;
}

}  // namespace

// A channel of its own, as the tensor axis has.
ContextAxis::ContextAxis(const std::shared_ptr<comm::Group>& group, ContextAttention attention)
    : size_(group->size()), group_(size_ > 1 ? group->with_channel("context") : nullptr), attention_(attention) {}

ContextAxis ContextAxis::of_size(int size) {
  ContextAxis axis;
  axis.size_ = size;
  return axis;
}

int ContextAxis::rank() const { return group_ ? group_->rank() : 0; }

double bytes_sent_for_token(ContextAttention attention, const SharedHeads& heads) {
  constexpr int64_t kBytesOfGradient = 4;
  const int64_t ranks = heads.context_ranks, exchanges = ranks - 1;
  int64_t bytes = 0;  // of all tensor ranks, times the context ranks where these share them
  for_each_tensor_rank(heads, [&](int64_t of_query, int64_t of_key) {
    if (attention == ContextAttention::kRing) {
      bytes += 2 * heads.element_size * 2 * of_key * exchanges * ranks + kBytesOfGradient * 2 * of_key * ranks * ranks;
    } else {
      bytes += 2 * heads.element_size * 2 * (of_query + key_heads_of_ranks(heads, of_query, of_key)) * exchanges;
    }
  });
  return static_cast<double>(bytes) / static_cast<double>(ranks * heads.tensor_ranks);
}

ContextAttention context_attention_of(const SharedHeads& heads, std::optional<ContextAttention> asked,
                                      const std::string& where) {
  using enum ContextAttention;
  if (asked == kRing && !heads.why_no_ring.empty()) {
    throw Error(ErrorKind::kConfig, {"ring attention is not possible here: " + heads.why_no_ring, where,
                                     "leave parallel.context_attention out, or write ulysses"});
  }
  if (asked == kRing) return kRing;
  try {
    const double ulysses = bytes_sent_for_token(kUlysses, heads);
    const bool may_choose = !asked && heads.why_no_ring.empty();
    return may_choose && bytes_sent_for_token(kRing, heads) < ulysses ? kRing : kUlysses;
  } catch (const Error& refusal) {  // heads do not go round
    if (!asked && heads.why_no_ring.empty()) return kRing;
    const std::string other = heads.why_no_ring.empty()
                                  ? "; or leave parallel.context_attention out, for a ring takes any number of heads"
                                  : "; ring attention takes any number of heads, but " + heads.why_no_ring;
    throw Error(ErrorKind::kConfig, {refusal.report().what, where, refusal.report().fix + other});
  }
}

const char* name_of(ContextAttention attention) { return attention == ContextAttention::kRing ? "ring" : "ulysses"; }

}  // namespace tessera::nn
