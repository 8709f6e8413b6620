#include "tessera/comm/ordered_sum.h"

#include <ATen/Parallel.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <array>

#include "tessera/base/error.h"
#include "tessera/kernels/every_cpu.h"
#include "tessera/kernels/float_blocks.h"

namespace tessera::comm {
namespace {

using kernels::FloatBlocks;

constexpr int64_t kBlock = 1024;        // elements summed at a time: the sums stay in the first-level cache
constexpr int64_t kBlocksAThread = 32;  // at least
constexpr size_t kStreamed = 1 << 20;   // bytes from which on a sum is stored past the caches: it would not stay there

TESSERA_EVERY_CPU
void add(const float* a, const float* b, float* sum, int64_t count) {
  for (int64_t i = 0; i < count; ++i) sum[i] = a[i] + b[i];
}

TESSERA_EVERY_CPU
void scale_by(float scale, const float* values, float* scaled, int64_t count) {
  for (int64_t i = 0; i < count; ++i) scaled[i] = values[i] * scale;
}

// Blocks `begin` to `end`, on each thread.
class SumOfFloats {
 public:
  SumOfFloats(const std::vector<at::Tensor>& parts, double scale, at::Tensor& out)
      : parts_(parts.begin(), parts.end()),
        scale_(static_cast<float>(scale)),
        out_(out),
        numel_(out.numel()),
        streams_(out.nbytes() >= kStreamed) {}

  void operator()(int64_t begin, int64_t end) const {
    for (int64_t first = begin * kBlock; first < end * kBlock && first < numel_; first += kBlock) {
      sum_block(first, std::min(kBlock, numel_ - first));
    }
    if (streams_) FloatBlocks::finish_streams();
  }

 private:
  void sum_block(int64_t first, int64_t count) const {
    alignas(64) std::array<float, kBlock> sum_buffer, part_buffer;
    const float* sum = parts_[0].widened(first, count, sum_buffer.data());
    for (size_t part = 1; part < parts_.size(); ++part) {
      add(sum, parts_[part].widened(first, count, part_buffer.data()), sum_buffer.data(), count);
      sum = sum_buffer.data();
    }
    if (scale_ != 1 || parts_.size() == 1) {
      scale_by(scale_, sum, sum_buffer.data(), count);
      sum = sum_buffer.data();
    }
    streams_ ? out_.stream(first, count, sum) : out_.narrow(first, count, sum);
  }

  std::vector<FloatBlocks> parts_;
  float scale_;
  FloatBlocks out_;
  int64_t numel_;
  bool streams_;
};

class SumOfDoubles {
 public:
  SumOfDoubles(const std::vector<at::Tensor>& parts, double scale, at::Tensor& out)
      : scale_(scale), out_(out.mutable_data_ptr<double>()), numel_(out.numel()) {
    for (const at::Tensor& part : parts) parts_.push_back(part.const_data_ptr<double>());
  }

  void operator()(int64_t begin, int64_t end) const {
    for (int64_t i = begin * kBlock; i < std::min(end * kBlock, numel_); ++i) {
      double sum = parts_[0][i];
      for (size_t part = 1; part < parts_.size(); ++part) sum += parts_[part][i];
      out_[i] = sum * scale_;
    }
  }

 private:
  std::vector<const double*> parts_;
  double scale_;
  double* out_;
  int64_t numel_;
};

void sum_on_device(const std::vector<at::Tensor>& parts, double scale, at::Tensor& out) {
  at::Tensor sum = parts.front().to(c10::promoteTypes(out.scalar_type(), at::kFloat), false, /*copy=*/true);
  for (size_t part = 1; part < parts.size(); ++part) sum.add_(parts[part]);
  out.copy_(sum.mul_(scale));
}

}  // namespace

void ordered_sum(const std::vector<at::Tensor>& parts, double scale, at::Tensor& out) {
  TESSERA_INVARIANT(!parts.empty());
  const at::ScalarType from = parts.front().scalar_type(), to = out.scalar_type();
  for (const at::Tensor& part : parts) {
    TESSERA_INVARIANT(part.is_contiguous() && part.numel() == out.numel() && part.scalar_type() == from);
  }
  TESSERA_INVARIANT((from == to && from == at::kDouble) || (FloatBlocks::holds(from) && FloatBlocks::holds(to)));
  if (!out.is_cpu()) return sum_on_device(parts, scale, out);
  const int64_t blocks = (out.numel() + kBlock - 1) / kBlock;
  if (from == at::kDouble) return at::parallel_for(0, blocks, kBlocksAThread, SumOfDoubles(parts, scale, out));
  at::parallel_for(0, blocks, kBlocksAThread, SumOfFloats(parts, scale, out));
}

}  // namespace tessera::comm
