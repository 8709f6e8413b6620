#include "tessera/storage/buffer_pool.h"

#include <gtest/gtest.h>

#include <utility>

namespace tessera::storage::buffer_pool_test {
namespace {

constexpr size_t kPage = kPageBytes;

// Gives the buffer back at once.
char* address_of_one(BufferPool& pool, size_t bytes) {
  AlignedBuffer buffer = pool.take(bytes);
  EXPECT_GE(buffer.capacity(), bytes);
  char* const address = buffer.data();
  pool.give_back(std::move(buffer));
  return address;
}

TEST(BufferPool, ABufferIsUsedAgainForNearlyItsSize) {
  BufferPool pool(2);
  char* const first = address_of_one(pool, 8 * kPage);
  EXPECT_EQ(address_of_one(pool, 8 * kPage), first);
  EXPECT_EQ(address_of_one(pool, 5 * kPage), first);
}

TEST(BufferPool, ALargeBufferIsNotKeptForSmallOnes) {
  BufferPool pool(2);
  for (int round = 0; round < 3; ++round) {
    address_of_one(pool, 100 * kPage);
    AlignedBuffer a = pool.take(kPage), b = pool.take(kPage);
    EXPECT_EQ(a.capacity() + b.capacity(), 2 * kPage);
    pool.give_back(std::move(a));
    pool.give_back(std::move(b));
  }
}

TEST(BufferPool, OneMoreThanItsCountIsNotKept) {
  BufferPool pool(1);
  AlignedBuffer kept = pool.take(kPage);
  EXPECT_FALSE(pool.has_spare());
  AlignedBuffer extra = pool.take(kPage);
  char* const address = kept.data();
  pool.give_back(std::move(extra));
  EXPECT_FALSE(pool.has_spare());
  pool.give_back(std::move(kept));
  EXPECT_TRUE(pool.has_spare());
  EXPECT_EQ(address_of_one(pool, kPage), address);
}

}  // namespace
}  // namespace tessera::storage::buffer_pool_test
