#include "tessera/storage/cpu_allocator.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sum.h>
#include <c10/core/Allocator.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <thread>

#include "tessera/base/error.h"

namespace tessera::storage::cpu_allocator_test {
namespace {

class CpuAllocator : public testing::Test {
 protected:
  void SetUp() override { use_reusing_cpu_allocator(); }
};

TEST_F(CpuAllocator, TensorsAreAlignedTo64Bytes) {
  for (const int64_t numel : {1, 3, 17, 1000, 30'000'000}) {
    const at::Tensor tensor = at::ones({numel});
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data_ptr()) % 64, 0u) << numel;
    EXPECT_EQ(tensor[numel - 1].item<float>(), 1);
  }
  EXPECT_EQ(at::empty({0}).numel(), 0);
}

// Before glibc 2.38 a freed block of posix_memalign cannot serve a request of its own size; here the second takes it.
TEST_F(CpuAllocator, AFreedBlockServesTheNextRequestOfItsSize) {
  at::Tensor first = at::empty({50'000});
  const at::Tensor behind = at::empty({50'000});  // so that the freed block does not grow
  const void* const place = first.data_ptr();
  first = at::Tensor();
  EXPECT_EQ(at::empty({50'000}).data_ptr(), place);
}

TEST_F(CpuAllocator, ALargeBlockServesTheNextRequestOfItsSizeUntilItIsReleased) {
  constexpr int64_t kNumel = 30'000'000;
  const auto page_faults = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_minflt;
  };
  const void* const place = at::ones({kNumel}).data_ptr();
  const int64_t before = page_faults();
  EXPECT_EQ(at::ones({kNumel}).data_ptr(), place);
  EXPECT_LT(page_faults() - before, 100);
  release_free_cpu_memory();
  EXPECT_EQ(at::ones({kNumel}).sum().item<float>(), kNumel);
}

TEST_F(CpuAllocator, AChildOfForkAllocatesWhileAnotherThreadDid) {
  at::empty(
      {1'000'000});  // LibTorch makes static variables at the first call; a child that is forked then waits for them
  std::atomic<bool> done = false;
  std::thread other([&] {
    while (!done) at::empty({1'000'000});
  });
  for (int round = 0; round < 20; ++round) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);  // instead of a hang
      at::empty({1'000'000});
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  done = true;
  other.join();
}

TEST_F(CpuAllocator, RawBlocksAreFreedByTheirOwnAddress) {
  c10::Allocator* const allocator = c10::GetAllocator(c10::DeviceType::CPU);
  void* const block = allocator->raw_allocate(100);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % 64, 0u);
  allocator->raw_deallocate(block);
}

TEST_F(CpuAllocator, WhatCannotBeAllocatedIsAnErrorOfTheMachine) {
  try {
    at::empty({int64_t{1} << 46});
    FAIL() << "2^48 bytes were allocated";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kMachine);
  }
}

}  // namespace
}  // namespace tessera::storage::cpu_allocator_test
