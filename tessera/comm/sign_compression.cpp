#include "tessera/comm/sign_compression.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "tessera/base/error.h"

namespace tessera::comm {
namespace {

constexpr int64_t kBlock = 16384;  // elements that one thread takes at a time

struct Moments {
  double squares = 0;
  int64_t live = 0;
};

template <class Work>
void for_each_block(int64_t numel, Work work) {
  at::parallel_for(0, (numel + kBlock - 1) / kBlock, 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block)
      work(block, block * kBlock, std::min(numel, (block + 1) * kBlock));
  });
}

void check(const at::Tensor& tensor, int64_t numel) {
  TESSERA_INVARIANT(tensor.is_contiguous() && tensor.scalar_type() == at::kFloat && tensor.numel() == numel);
  TESSERA_INVARIANT(numel % 8 == 0);
}

}  // namespace

void compress_signs(at::Tensor& values, at::Tensor& error, const at::Tensor& live, uint8_t* compressed) {
  const int64_t numel = values.numel();
  check(values, numel);
  check(error, numel);
  check(live, numel);
  float* const x = values.mutable_data_ptr<float>();
  float* const lost = error.mutable_data_ptr<float>();
  const float* const is_live = live.const_data_ptr<float>();

  std::vector<Moments> blocks((numel + kBlock - 1) / kBlock);
  for_each_block(numel, [&](int64_t block, int64_t begin, int64_t end) {
    Moments sum;
    for (int64_t i = begin; i < end; ++i) {
      const bool counts = is_live[i] != 0;
      x[i] = counts ? x[i] + lost[i] : 0;
      sum.squares += static_cast<double>(x[i]) * x[i];
      sum.live += counts ? 1 : 0;
    }
    blocks[block] = sum;
  });
  Moments all;
  for (const Moments& block : blocks) {
    all.squares += block.squares;
    all.live += block.live;
  }
  const auto scale = static_cast<float>(all.live == 0 ? 0 : std::sqrt(all.squares / static_cast<double>(all.live)));

  for_each_block(numel, [&](int64_t, int64_t begin, int64_t end) {
    for (int64_t byte = begin / 8; byte < end / 8; ++byte) {
      unsigned bits = 0;
      for (int64_t bit = 0; bit < 8; ++bit) {
        const int64_t i = byte * 8 + bit;
        const bool positive = x[i] >= 0;
        bits |= static_cast<unsigned>(positive) << bit;
        lost[i] = is_live[i] != 0 ? x[i] - (positive ? scale : -scale) : 0;
      }
      compressed[byte] = static_cast<uint8_t>(bits);
    }
  });
  std::memcpy(compressed + numel / 8, &scale, sizeof scale);
}

void add_signs(const uint8_t* compressed, double factor, const at::Tensor& live, at::Tensor& sum) {
  const int64_t numel = sum.numel();
  check(sum, numel);
  check(live, numel);
  float scale = 0;
  std::memcpy(&scale, compressed + numel / 8, sizeof scale);
  const auto step = static_cast<float>(scale * factor);
  float* const to = sum.mutable_data_ptr<float>();
  const float* const is_live = live.const_data_ptr<float>();
  for_each_block(numel, [&](int64_t, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const bool positive = (compressed[i / 8] >> (i % 8) & 1) != 0;
      if (is_live[i] != 0) to[i] += positive ? step : -step;
    }
  });
}

}  // namespace tessera::comm
