// Pinned memory, and copies between it and a device that runs late (tests/support/far_device.h).
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tessera/comm/current_stream.h"
#include "tessera/storage/buffer_pool.h"
#include "tessera/storage/host_link.h"
#include "tessera/storage/pages.h"
#include "tests/support/far_device.h"

namespace tessera::device_test {
namespace {

using storage::HostLink;
using storage::PinnedMemory;

constexpr int64_t kPlenty = 1 << 26;

std::shared_ptr<PinnedMemory> memory_of(int64_t limit) {
  return PinnedMemory::create(test::far_device().type(), limit);
}

TEST(DevicePinnedMemory, IsCutIntoTensorsThatBeginAtPages) {
  const auto memory = memory_of(kPlenty);
  std::vector<at::Tensor> tensors;
  for (const int64_t numel : {1, 1000, 5000, 100'000, 3}) {
    tensors.push_back(memory->empty(numel, at::kFloat).fill_(static_cast<double>(numel)));
    EXPECT_TRUE(tensors.back().is_pinned());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensors.back().data_ptr()) % storage::kPageBytes, 0);
  }
  for (const at::Tensor& each : tensors) {
    EXPECT_TRUE(at::equal(each, at::full_like(each, static_cast<double>(each.numel())))) << "lies in another";
  }
  EXPECT_LE(memory->pinned_bytes(), kPlenty);
  EXPECT_EQ(memory->pageable_bytes(), 0);
}

TEST(DevicePinnedMemory, ComesBackWithATensorAndIsUsedAgain) {
  const auto memory = memory_of(kPlenty);
  const int64_t numel = 1 << 20;
  at::Tensor first = memory->empty(numel, at::kFloat);
  const at::Tensor between = memory->empty(100, at::kFloat);
  const int64_t taken = memory->pinned_bytes();
  for (int i = 0; i < 50; ++i) {
    const void* const where = first.data_ptr();
    first.reset();
    first = memory->empty(numel - i, at::kFloat);
    EXPECT_EQ(first.data_ptr(), where);
  }
  EXPECT_EQ(memory->pinned_bytes(), taken);
}

TEST(DevicePinnedMemory, IsOrdinaryBeyondTheLimit) {
  const auto memory = memory_of(1 << 20);
  const at::Tensor fits = memory->empty(1 << 17, at::kFloat);
  const at::Tensor does_not = memory->empty(1 << 18, at::kFloat);
  EXPECT_TRUE(fits.is_pinned());
  EXPECT_FALSE(does_not.is_pinned());
  EXPECT_LE(memory->pinned_bytes(), 1 << 20);
  EXPECT_EQ(memory->pageable_bytes(), 4 << 18);
  EXPECT_FALSE(memory_of(0)->empty(10, at::kFloat).is_pinned());
}

TEST(DevicePinnedMemory, OutlivesItsPool) {
  auto memory = memory_of(kPlenty);
  at::Tensor tensor = memory->empty(1000, at::kDouble);
  memory.reset();
  EXPECT_EQ(tensor.fill_(3).sum().item<double>(), 3000);
}

bool is_pinned(const storage::AlignedBuffer& buffer) {
  return at::from_blob(buffer.data(), {static_cast<int64_t>(buffer.capacity())}, at::kByte).is_pinned();
}

TEST(DevicePinnedMemory, BuffersOfFilesLieThereWhileItLasts) {
  const auto memory = memory_of(1 << 20);
  storage::BufferPool pool(2, memory);
  storage::AlignedBuffer first = pool.take(1 << 19), second = pool.take(1 << 19);
  EXPECT_TRUE(is_pinned(first));
  EXPECT_FALSE(is_pinned(second));
  for (const storage::AlignedBuffer* const each : {&first, &second}) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(each->data()) % storage::kPageBytes, 0);
    std::fill_n(each->data(), each->capacity(), 'x');
  }
  pool.give_back(std::move(first));
  pool.give_back(std::move(second));
  EXPECT_TRUE(is_pinned(pool.take(1 << 19)));
  EXPECT_FALSE(is_pinned(storage::AlignedBuffer(1 << 12)));
}

class DeviceCopies : public testing::Test {
 protected:
  void SetUp() override {
    test::far_device();
    test::set_far_mode({.late = true, .seed = 5, .records = true});
  }
  void TearDown() override {
    EXPECT_THAT(test::far_facts().races, testing::IsEmpty());
    test::set_far_mode({});
  }
  at::Tensor there(double value) { return at::full({kNumel}, value, at::TensorOptions(test::far_device())); }

  static constexpr int64_t kNumel = 10'000;
  HostLink link{test::far_device(), memory_of(kPlenty)};
};

TEST_F(DeviceCopies, ToTheHostComeAfterWhatWasComputed) {
  at::Tensor values = there(1);
  values.add_(1);
  const at::Tensor host = link.memory().empty(kNumel, at::kFloat);
  link.start_to_host(host, values, "values").finish();
  EXPECT_TRUE(at::equal(host, at::full({kNumel}, 2.0)));
}

TEST_F(DeviceCopies, ToTheDeviceComeBeforeWhatIsComputedNext) {
  const at::Tensor values = there(1);
  const at::Tensor host = link.memory().empty(kNumel, at::kFloat).fill_(5);
  HostLink::Copy copy = link.start_to_device(values, host, "values");
  copy.wait_on(comm::current_stream(values.device()));
  EXPECT_FALSE(copy.in_flight());
  EXPECT_TRUE(at::equal((values + 1).cpu(), at::full({kNumel}, 6.0)));
}

TEST_F(DeviceCopies, HoldTheirTensors) {
  const at::Tensor host = link.memory().empty(kNumel, at::kFloat);
  for (int i = 0; i < 20; ++i) {
    const size_t before = test::far_bytes_in_use();
    HostLink::Copy copy = link.start_to_host(host, there(i), "values");
    EXPECT_GT(test::far_bytes_in_use(), before);
    there(-1);  // where a freed one would have been
    copy.finish();
    EXPECT_TRUE(at::equal(host, at::full({kNumel}, static_cast<double>(i))));
    EXPECT_EQ(test::far_bytes_in_use(), before);
  }
}

TEST_F(DeviceCopies, StagingBuffersTakeTurns) {
  storage::StagingBuffers buffers(std::shared_ptr<HostLink>(std::shared_ptr<void>(), &link));
  std::vector<at::Tensor> sent;
  for (int i = 0; i < 10; ++i) {
    auto& buffer = buffers.next(kNumel - i, at::kFloat);
    buffer.values.fill_(i);
    sent.push_back(there(-1).narrow(0, 0, kNumel - i));
    buffer.copy = link.start_to_device(sent.back(), buffer.values, "values");
    HostLink::Copy(buffer.copy).wait_on(comm::current_stream(test::far_device()));
  }
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(at::equal(sent[static_cast<size_t>(i)].cpu(), at::full({kNumel - i}, static_cast<double>(i))));
  }
}

}  // namespace
}  // namespace tessera::device_test
