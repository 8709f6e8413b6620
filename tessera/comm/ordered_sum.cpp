#include "tessera/comm/ordered_sum.h"

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <array>

#include "tessera/base/error.h"

namespace tessera::comm {
namespace {

constexpr int64_t kBlock = 2048;   // elements summed at a time: the sums stay in the first-level cache
constexpr int64_t kGrain = 32768;  // elements a thread takes at least

template <class Element>
void sum_range(const std::vector<const Element*>& parts, at::opmath_type<Element> scale, Element* out, int64_t begin,
               int64_t end) {
  using Sum = at::opmath_type<Element>;
  std::array<Sum, kBlock> sum;
  for (int64_t at = begin; at < end; at += kBlock) {
    const int64_t count = std::min(kBlock, end - at);
    for (int64_t i = 0; i < count; ++i) sum[i] = static_cast<Sum>(parts[0][at + i]);
    for (size_t part = 1; part < parts.size(); ++part) {
      const Element* const from = parts[part] + at;
      for (int64_t i = 0; i < count; ++i) sum[i] += static_cast<Sum>(from[i]);
    }
    for (int64_t i = 0; i < count; ++i) out[at + i] = static_cast<Element>(sum[i] * scale);
  }
}

}  // namespace

void ordered_sum(const std::vector<at::Tensor>& parts, double scale, at::Tensor& out) {
  TESSERA_INVARIANT(!parts.empty());
  for (const at::Tensor& part : parts) {
    TESSERA_INVARIANT(part.is_contiguous() && part.numel() == out.numel() && part.scalar_type() == out.scalar_type());
  }
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, out.scalar_type(), "ordered_sum", [&] {
    std::vector<const scalar_t*> from;
    for (const at::Tensor& part : parts) from.push_back(part.const_data_ptr<scalar_t>());
    auto* const to = out.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, out.numel(), kGrain, [&](int64_t begin, int64_t end) {
      sum_range<scalar_t>(from, static_cast<at::opmath_type<scalar_t>>(scale), to, begin, end);
    });
  });
}

}  // namespace tessera::comm
