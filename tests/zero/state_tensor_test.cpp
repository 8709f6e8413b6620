#include "tessera/zero/state_tensor.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tests/zero/swap_files.h"

namespace tessera::zero::state_tensor_test {
namespace {

constexpr int64_t kNumel = 2 * kTileAlign + 100;

TEST(StateTensor, IsTheTensorItselfInMemoryAndACopyFromTheFile) {
  const test::TemporaryFolder folder;
  const at::Tensor values = at::arange(kNumel, at::kFloat);
  const at::Tensor home = at::zeros({kNumel});
  const StateTensor in_memory(home), on_disk(test::swap_file(folder), kNumel, at::kFloat);
  for (const StateTensor& tensor : {in_memory, on_disk}) {
    EXPECT_EQ(tensor.load().abs().sum().item<float>(), 0);
    tensor.store(values);
    EXPECT_TRUE(at::equal(tensor.load(), values));
    EXPECT_EQ(tensor.bytes(), 4 * kNumel);
  }
  EXPECT_TRUE(at::equal(home, values));
  EXPECT_TRUE(on_disk.swapped());
  on_disk.load().zero_();
  EXPECT_TRUE(at::equal(on_disk.load(), values));
}

TEST(StateTensor, MovesPartsBetweenTheFileAndABuffer) {
  const test::TemporaryFolder folder;
  const auto file = test::swap_file(folder);
  const StateTensor tensor(file, kNumel, at::kBFloat16), neighbour(file, kNumel, at::kBFloat16);
  tensor.store(at::ones({kNumel}));
  neighbour.store(at::full({kNumel}, 7));
  storage::AlignedBuffer buffer;
  const layout::Range last{2 * kTileAlign, kNumel};
  tensor.finish(tensor.start_read(last, buffer));
  tensor.view_in(buffer, last).fill_(5);
  tensor.finish(tensor.start_write(last, buffer));
  at::Tensor want = at::ones({kNumel}, at::kBFloat16);
  want.narrow(0, last.begin, last.numel()).fill_(5);
  EXPECT_TRUE(at::equal(tensor.load(), want));
  EXPECT_TRUE(at::equal(neighbour.load(), at::full({kNumel}, 7, at::kBFloat16)));
}

TEST(StateTensor, APartThatBeginsWithinAPageIsOurBug) {
  const test::TemporaryFolder folder;
  const StateTensor tensor(test::swap_file(folder), kNumel, at::kFloat);
  storage::AlignedBuffer buffer;
  EXPECT_THROW(tensor.start_read({7, kNumel}, buffer), Error);
}

}  // namespace
}  // namespace tessera::zero::state_tensor_test
