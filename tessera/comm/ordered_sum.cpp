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

template <class In, class Out>
void sum_range(const std::vector<const In*>& parts, at::opmath_type<In> scale, Out* out, int64_t begin, int64_t end) {
  using Sum = at::opmath_type<In>;
  std::array<Sum, kBlock> sum;
  for (int64_t at = begin; at < end; at += kBlock) {
    const int64_t count = std::min(kBlock, end - at);
    for (int64_t i = 0; i < count; ++i) sum[i] = static_cast<Sum>(parts[0][at + i]);
    for (size_t part = 1; part < parts.size(); ++part) {
      const In* const from = parts[part] + at;
      for (int64_t i = 0; i < count; ++i) sum[i] += static_cast<Sum>(from[i]);
    }
    for (int64_t i = 0; i < count; ++i) out[at + i] = static_cast<Out>(sum[i] * scale);
  }
}

template <class In, class Out>
void sum_parts(const std::vector<at::Tensor>& parts, double scale, at::Tensor& out) {
  std::vector<const In*> from;
  for (const at::Tensor& part : parts) from.push_back(part.const_data_ptr<In>());
  auto* const to = out.mutable_data_ptr<Out>();
  at::parallel_for(0, out.numel(), kGrain, [&](int64_t begin, int64_t end) {
    sum_range<In, Out>(from, static_cast<at::opmath_type<In>>(scale), to, begin, end);
  });
}

}  // namespace

void ordered_sum(const std::vector<at::Tensor>& parts, double scale, at::Tensor& out) {
  TESSERA_INVARIANT(!parts.empty());
  const at::ScalarType from = parts.front().scalar_type(), to = out.scalar_type();
  for (const at::Tensor& part : parts) {
    TESSERA_INVARIANT(part.is_contiguous() && part.numel() == out.numel() && part.scalar_type() == from);
  }
  TESSERA_INVARIANT(from == to || from == at::kFloat || to == at::kFloat);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, from, "ordered_sum", [&] {
    if (from == to) return sum_parts<scalar_t, scalar_t>(parts, scale, out);
    if (to == at::kFloat) return sum_parts<scalar_t, float>(parts, scale, out);
    AT_DISPATCH_REDUCED_FLOATING_TYPES(to, "ordered_sum", [&] { sum_parts<float, scalar_t>(parts, scale, out); });
  });
}

}  // namespace tessera::comm
