#include "tessera/optim/clip.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include "tessera/base/error.h"

namespace tessera::optim {
namespace {

constexpr int64_t kBlock = 65536;  // elements summed by one thread, in one order
constexpr int64_t kLanes = 16;     // partial sums that a compiler can keep in vector registers

constexpr int64_t kWidened = 16 << 20;  // elements of a device's tensor that are in fp64 at a time

template <class Element>
double sum_block(const Element* values, int64_t count) {
  std::array<double, kLanes> lanes{};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const double value = static_cast<double>(static_cast<float>(values[i + lane]));
      lanes[lane] += value * value;
    }
  }
  for (; i < count; ++i) {
    const double value = static_cast<double>(static_cast<float>(values[i]));
    lanes[0] += value * value;
  }
  return std::accumulate(lanes.begin(), lanes.end(), 0.0);
}

at::Tensor sum_on_device(const at::Tensor& flat) {
  at::Tensor sum = at::zeros({}, flat.options().dtype(at::kDouble));
  for (const at::Tensor& chunk : flat.split(kWidened)) {
    sum += at::linalg_vector_norm(chunk, 2, std::nullopt, /*keepdim=*/false, at::kDouble).square();
  }
  return sum;
}

}  // namespace

double sum_of_squares(const at::Tensor& flat) {
  TESSERA_INVARIANT(flat.is_contiguous());
  if (!flat.is_cpu()) return sum_on_device(flat).item<double>();
  const int64_t numel = flat.numel();
  std::vector<double> blocks((numel + kBlock - 1) / kBlock);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, flat.scalar_type(), "sum_of_squares", [&] {
    const auto* const values = flat.const_data_ptr<scalar_t>();
    at::parallel_for(0, static_cast<int64_t>(blocks.size()), 1, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        const int64_t first = block * kBlock;
        blocks[block] = sum_block(values + first, std::min(kBlock, numel - first));
      }
    });
  });
  return std::accumulate(blocks.begin(), blocks.end(), 0.0);
}

void SumOfSquares::add(const at::Tensor& flat) {
  if (flat.is_cpu()) {
    on_host_ += sum_of_squares(flat);
  } else {
    const at::Tensor sum = sum_on_device(flat);
    on_device_ = on_device_.defined() ? on_device_.add(sum) : sum;
  }
}

void SumOfSquares::add(const SumOfSquares& other) {
  on_host_ += other.on_host_;
  if (!other.on_device_.defined()) return;
  on_device_ = on_device_.defined() ? on_device_.add(other.on_device_) : other.on_device_;
}

double SumOfSquares::value() const { return on_device_.defined() ? on_host_ + on_device_.item<double>() : on_host_; }

double clip_divisor(double norm, double max_norm) {
  if (max_norm <= 0) return 1;
  return std::max(1.0, (norm + 1e-6) / max_norm);
}

at::Tensor clip_factor(const at::Tensor& norm, double max_norm, double epsilon) {
  return norm.add(epsilon).reciprocal().mul(max_norm).clamp_max(1);
}

}  // namespace tessera::optim
