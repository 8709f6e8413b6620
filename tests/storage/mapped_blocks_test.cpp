#include "tessera/storage/mapped_blocks.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <vector>

namespace tessera::storage::mapped_blocks_test {
namespace {

constexpr size_t kMiB = 1 << 20;

// Whether the system has pages for it: mincore() fails where nothing is mapped.
bool is_mapped(const MappedBlock& block) {
  std::vector<unsigned char> pages(block.bytes / 4096);
  return mincore(block.address, block.bytes, pages.data()) == 0;
}

TEST(MappedBlocks, AreWholePagesAndHardlyLargerThanAskedFor) {
  MappedBlocks blocks;
  for (const size_t bytes : {kMiB, kMiB + 1, 5 * kMiB - 1, 62 * kMiB + 12345}) {
    const MappedBlock block = blocks.take(bytes);
    std::memset(block.address, 1, block.bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block.address) % 4096, 0u);
    EXPECT_EQ(block.bytes % 4096, 0u);
    EXPECT_GE(block.bytes, bytes);
    EXPECT_LE(block.bytes, bytes + bytes / 32);
    blocks.give_back(block);
  }
}

TEST(MappedBlocks, AFreedBlockServesTheNextOfAboutItsSize) {
  MappedBlocks blocks;
  const MappedBlock small = blocks.take(8 * kMiB), large = blocks.take(9 * kMiB), larger = blocks.take(20 * kMiB);
  for (const MappedBlock& block : {small, large, larger}) blocks.give_back(block);
  EXPECT_EQ(blocks.bytes_idle(), small.bytes + large.bytes + larger.bytes);
  EXPECT_EQ(blocks.take(8 * kMiB).address, small.address);
  EXPECT_EQ(blocks.take(8 * kMiB).address, large.address);  // an eighth larger
  EXPECT_NE(blocks.take(8 * kMiB).address, larger.address);
}

TEST(MappedBlocks, WhatIsKeptNeverRaisesThePeak) {
  MappedBlocks blocks;
  const MappedBlock first = blocks.take(10 * kMiB), second = blocks.take(20 * kMiB);
  const size_t most = blocks.bytes_in_use();
  blocks.give_back(first);
  blocks.give_back(second);
  blocks.take(15 * kMiB);  // beside the second it would be more than there ever was
  EXPECT_LE(blocks.bytes_in_use() + blocks.bytes_idle(), most);
  blocks.take(5 * kMiB);
  EXPECT_LE(blocks.bytes_in_use() + blocks.bytes_idle(), most);
}

// At the peak, a block of 20 MiB and one of 11 would else drive each other out in every step.
TEST(MappedBlocks, WhatComesAgainAtThePeakTakesALargerOne) {
  MappedBlocks blocks;
  const MappedBlock stays = blocks.take(50 * kMiB), large = blocks.take(20 * kMiB);
  const size_t most = blocks.bytes_in_use();
  blocks.give_back(large);
  for (uint64_t step = 0; step < 8; ++step) {
    const MappedBlock small = blocks.take(11 * kMiB);
    const bool has_come_again = step >= 2;  // the first step makes what stays
    EXPECT_EQ(small.bytes, has_come_again ? 20 * kMiB : 11 * kMiB) << step;
    blocks.give_back(small);
    const MappedBlock again = blocks.take(20 * kMiB);
    EXPECT_EQ(again.address == small.address, has_come_again);
    blocks.give_back(again);
    EXPECT_LE(blocks.bytes_in_use() + blocks.bytes_idle(), most);
    blocks.end_step();
  }
  blocks.give_back(stays);
}

TEST(MappedBlocks, WhatComesOnceIsServedExactly) {
  MappedBlocks blocks;
  blocks.take(50 * kMiB);
  const MappedBlock large = blocks.take(20 * kMiB);
  blocks.give_back(large);
  for (uint64_t step = 0; step < 4; ++step) blocks.end_step();
  EXPECT_EQ(blocks.take(11 * kMiB).bytes, 11 * kMiB);
  EXPECT_FALSE(is_mapped(large));
}

TEST(MappedBlocks, TheLongestIdleGoesFirst) {
  MappedBlocks blocks;
  const MappedBlock first = blocks.take(10 * kMiB), second = blocks.take(14 * kMiB), third = blocks.take(18 * kMiB);
  for (const MappedBlock& block : {second, third, first}) blocks.give_back(block);
  blocks.take(24 * kMiB);  // room for 18 MiB beside it
  EXPECT_EQ(blocks.bytes_idle(), first.bytes);
  EXPECT_EQ(blocks.take(10 * kMiB).address, first.address);
}

TEST(MappedBlocks, WhatStepsDoNotUseGoesBack) {
  MappedBlocks blocks;
  const MappedBlock once = blocks.take(10 * kMiB), always = blocks.take(20 * kMiB);
  blocks.give_back(once);
  blocks.give_back(always);
  for (uint64_t step = 0; step < MappedBlocks::kIdleSteps; ++step) {
    blocks.end_step();
    EXPECT_TRUE(is_mapped(once));
    const MappedBlock again = blocks.take(20 * kMiB);
    EXPECT_EQ(again.address, always.address);
    blocks.give_back(again);
  }
  blocks.end_step();
  EXPECT_FALSE(is_mapped(once));
  EXPECT_TRUE(is_mapped(always));
  EXPECT_EQ(blocks.bytes_idle(), always.bytes);
}

TEST(MappedBlocks, ReleasesAllThatIsIdle) {
  MappedBlocks blocks;
  const MappedBlock used = blocks.take(10 * kMiB), idle = blocks.take(20 * kMiB);
  blocks.give_back(idle);
  blocks.release_idle();
  EXPECT_FALSE(is_mapped(idle));
  EXPECT_TRUE(is_mapped(used));
  EXPECT_EQ(blocks.bytes_idle(), 0u);
  EXPECT_EQ(blocks.bytes_in_use(), used.bytes);
}

TEST(MappedBlocks, SaysWhenTheSystemHasNoMore) {
  MappedBlocks blocks;
  EXPECT_EQ(blocks.take(size_t{1} << 47).address, nullptr);
  EXPECT_EQ(blocks.bytes_in_use(), 0u);
}

}  // namespace
}  // namespace tessera::storage::mapped_blocks_test
