#include "tessera/storage/io_queue.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <functional>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/storage/aligned_buffer.h"
#include "tessera/storage/io_transfers.h"
#include "tests/support/temporary_folder.h"

namespace tessera::storage::io_queue_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr size_t kPage = kPageBytes;

char byte_at(uint64_t offset) { return static_cast<char>(offset * 2654435761U >> 13); }

std::string bytes_between(uint64_t begin, uint64_t end) {
  std::string bytes;
  for (uint64_t at = begin; at < end; ++at) bytes.push_back(byte_at(at));
  return bytes;
}

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kMachine);
    return error.what();
  }
  return "no error";
}

struct Case {
  const char* engine;
  const char* name;
  IoOptions options;
};

class IoQueueCase : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    setenv("TESSERA_IO", GetParam().engine, 1);
    if (IoQueue().engine() != std::string(GetParam().engine)) GTEST_SKIP() << "the kernel refuses io_uring";
  }
  void TearDown() override {
    unsetenv("TESSERA_IO");
    for (const int fd : opened_) close(fd);
  }

  IoFile open_file(const std::string& path, int flags) {
    const int fd = open(path.c_str(), flags | O_CLOEXEC, 0644);
    EXPECT_GE(fd, 0) << path << ": " << errno_text(errno);
    opened_.push_back(fd);
    return {fd, path};
  }

  // Past the page cache where the file system can.
  IoFile open_direct(const std::string& path, int flags) {
    const int fd = open(path.c_str(), flags | O_DIRECT | O_CLOEXEC, 0644);
    if (fd < 0) return open_file(path, flags);
    opened_.push_back(fd);
    return {fd, path};
  }

  std::string path(const std::string& name) const { return folder_.path() / name; }

  void make_file(const std::string& name, uint64_t bytes) {
    std::ofstream(path(name), std::ios::binary) << bytes_between(0, bytes);
  }

  std::string content(const std::string& name) const {
    std::ifstream file(path(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  test::TemporaryFolder folder_;
  std::vector<int> opened_;
};

TEST_P(IoQueueCase, WritesTransfersOfAnySizeToTheirPlaces) {
  IoQueue queue(GetParam().options);
  const IoFile file = open_file(path("out"), O_WRONLY | O_CREAT);
  const std::vector<size_t> sizes = {1, kPage - 1, kPage, kPage + 1, 3 * kPage, 10 * kPage + 7, 50 * kPage, 0, 5};
  const std::string all = bytes_between(0, std::accumulate(sizes.begin(), sizes.end(), size_t{0}));
  uint64_t offset = 0;
  for (const size_t size : sizes) {
    queue.start_write(file, all.data() + offset, size, offset);
    offset += size;
  }
  queue.wait_all();
  EXPECT_EQ(queue.in_flight(), 0);
  EXPECT_TRUE(content("out") == all);
}

TEST_P(IoQueueCase, ReadsFromAnyPlace) {
  make_file("in", 100 * kPage);
  IoQueue queue(GetParam().options);
  const IoFile file = open_file(path("in"), O_RDONLY);
  std::vector<std::pair<uint64_t, std::string>> reads;
  for (const uint64_t offset : {uint64_t{0}, uint64_t{1}, 5 * kPage - 3, 60 * kPage}) {
    for (const size_t size : {size_t{1}, kPage, 33 * kPage + 5}) reads.emplace_back(offset, std::string(size, 'x'));
  }
  for (auto& [offset, into] : reads) queue.start_read(file, into.data(), into.size(), offset);
  queue.wait_all();
  for (const auto& [offset, into] : reads) EXPECT_TRUE(into == bytes_between(offset, offset + into.size())) << offset;
}

TEST_P(IoQueueCase, PassesThePageCacheByWithAlignedMemory) {
  constexpr size_t kBytes = 300 * kPage;
  const AlignedBuffer written(kBytes), read(kBytes);
  for (size_t at = 0; at < kBytes; ++at) written.data()[at] = byte_at(at);
  IoQueue queue(GetParam().options);
  const IoFile file = open_direct(path("direct"), O_RDWR | O_CREAT);
  queue.start_write(file, written.data(), kBytes, 0);
  queue.wait_all();
  queue.start_read(file, read.data(), kBytes, 0);
  queue.wait_all();
  EXPECT_EQ(std::memcmp(written.data(), read.data(), kBytes), 0);
  EXPECT_TRUE(content("direct") == bytes_between(0, kBytes));
}

TEST_P(IoQueueCase, ReturnsEachTagOnceHoweverManyRequestsItsTransferNeeds) {
  make_file("in", 64 * kPage);
  IoQueue queue(GetParam().options);
  const IoFile file = open_file(path("in"), O_RDONLY);
  std::vector<std::string> into;
  std::multiset<size_t> tags, want;
  for (size_t tag = 0; tag < 60; ++tag) into.emplace_back(tag * kPage, 'x');  // tag 0: a transfer of nothing
  for (size_t tag = 0; tag < 60; ++tag) {
    queue.start_read(file, into[tag].data(), into[tag].size(), 0, tag);
    want.insert(tag);
  }
  EXPECT_EQ(queue.in_flight(), 60);
  while (queue.in_flight() > 0) tags.insert(queue.wait_one());
  EXPECT_EQ(tags, want);
}

TEST_P(IoQueueCase, FinishesWhatItBeganBeforeItGoes) {
  const std::string all = bytes_between(0, 200 * kPage);
  const IoFile file = open_file(path("out"), O_WRONLY | O_CREAT);
  {
    IoQueue queue(GetParam().options);
    queue.start_write(file, all.data(), all.size(), 0);
  }
  EXPECT_TRUE(content("out") == all);
}

TEST_P(IoQueueCase, AReadBeyondTheEndNamesTheFileAndThePlace) {
  make_file("short", 10 * kPage + 100);
  const AlignedBuffer into(20 * kPage);
  IoQueue queue(GetParam().options);
  for (const IoFile& file : {open_file(path("short"), O_RDONLY), open_direct(path("short"), O_RDONLY)}) {
    queue.start_read(file, into.data(), 20 * kPage, 0);  // the end lies inside a request, or between two
    EXPECT_THAT(message_of([&] { queue.wait_one(); }),
                AllOf(HasSubstr("ends before byte " + std::to_string(20 * kPage)), HasSubstr(path("short"))));
    queue.start_read(file, into.data(), kPage, 40 * kPage);
    EXPECT_THAT(message_of([&] { queue.wait_one(); }), HasSubstr("ends before byte " + std::to_string(41 * kPage)));
  }
}

TEST_P(IoQueueCase, AFullDiskIsOneErrorForEachTransfer) {
  const std::string bytes(50 * kPage, 'x');
  IoQueue queue(GetParam().options);
  const IoFile full = open_file("/dev/full", O_WRONLY), fine = open_file(path("fine"), O_WRONLY | O_CREAT);
  queue.start_write(full, bytes.data(), bytes.size(), 0, 1);
  queue.start_write(fine, bytes.data(), bytes.size(), 0, 2);
  queue.start_write(full, bytes.data(), 1, 0, 3);
  int failed = 0;
  while (queue.in_flight() > 0) {
    const std::string message = message_of([&] { EXPECT_EQ(queue.wait_one(), 2U); });
    if (message == "no error") continue;
    ++failed;
    EXPECT_THAT(message, AllOf(HasSubstr(errno_text(ENOSPC)), HasSubstr("/dev/full")));
  }
  EXPECT_EQ(failed, 2);
  EXPECT_TRUE(content("fine") == bytes);
}

TEST_P(IoQueueCase, AFileThatMayNotBeWrittenIsAnErrorWithItsPath) {
  make_file("locked", 10);
  IoQueue queue(GetParam().options);
  const IoFile file = open_file(path("locked"), O_RDONLY);
  queue.start_write(file, "abc", 3, 0);
  EXPECT_THAT(message_of([&] { queue.wait_all(); }), AllOf(HasSubstr(errno_text(EBADF)), HasSubstr(path("locked"))));
  EXPECT_EQ(queue.in_flight(), 0);
  EXPECT_TRUE(content("locked") == bytes_between(0, 10));
}

// A pipe into which nobody writes stands for a disk that does not answer. (Of a pipe pread() says at once that it has
// no places, so this is about io_uring; how long is waited is the same for both, IoTransfersTest.)
TEST(IoQueue, ADiskThatDoesNotAnswerIsAnErrorAndHoldsNothingUp) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const IoFile file{ends[0], "the pipe"};
  const AlignedBuffer into(kPage);
  {
    IoQueue queue({.timeout = std::chrono::milliseconds(50)});
    if (queue.engine() == std::string("threads")) GTEST_SKIP() << "the kernel refuses io_uring";
    queue.start_read(file, into.data(), kPage, 0);
    EXPECT_THAT(message_of([&] { queue.wait_one(); }), AllOf(HasSubstr("has not answered"), HasSubstr("the pipe")));
    EXPECT_THAT(message_of([&] { queue.wait_all(); }), HasSubstr("has not answered"));
  }
  close(ends[0]);
  close(ends[1]);
}

std::vector<Case> cases() {
  constexpr IoOptions kSmall{.block_bytes = kPage, .depth = 3};
  std::vector<Case> all;
  for (const char* engine : {"io_uring", "threads"}) {
    IoOptions one = kSmall, threads = kSmall, single = kSmall, batches = kSmall, all_at_once = kSmall;
    one.depth = 1;
    threads.threads = 3;
    single.single_submit = true;
    batches.overlap_events = false;
    all_at_once = {.block_bytes = 3 * kPage, .depth = 5, .threads = 2, .single_submit = true, .overlap_events = false};
    all.insert(all.end(), {{engine, "Defaults", {}},
                           {engine, "SmallBlocks", kSmall},
                           {engine, "OneRequestAtATime", one},
                           {engine, "SeveralThreads", threads},
                           {engine, "SingleSubmit", single},
                           {engine, "WithoutOverlap", batches},
                           {engine, "AllTogether", all_at_once}});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Engines, IoQueueCase, testing::ValuesIn(cases()), [](const auto& test) {
  return std::string(test.param.engine == std::string("threads") ? "Threads" : "Uring") + test.param.name;
});

// What the workers are given
// ----------------------------------------------------------------------------------------------------

class IoTransfersTest : public testing::Test {
 protected:
  static constexpr std::chrono::milliseconds kSoon{20};

  void add(size_t bytes, uint64_t offset) {
    transfers_.add({.file = &file_, .data = memory_.data(), .bytes = bytes, .offset = offset});
  }
  std::vector<IoRequest> take(size_t most) {
    std::vector<IoRequest> requests;
    transfers_.take(most, requests);
    return requests;
  }

  std::vector<char> memory_ = std::vector<char>(100);
  IoFile file_;
  IoTransfers transfers_{/*block_bytes=*/10, /*takers=*/1};
};

TEST_F(IoTransfersTest, CutsTransfersIntoBlocksAndKeepsTheirOrder) {
  add(25, 1000);
  add(7, 2000);
  std::vector<std::pair<uint64_t, size_t>> got;
  for (const IoRequest& request : take(2)) got.emplace_back(request.offset(), request.left());
  for (const IoRequest& request : take(9)) got.emplace_back(request.offset(), request.left());
  const std::vector<std::pair<uint64_t, size_t>> want = {{1000, 10}, {1010, 10}, {1020, 5}, {2000, 7}};
  EXPECT_EQ(got, want);
}

TEST_F(IoTransfersTest, ContinuesAShortRequestWhereItEnded) {
  add(10, 500);
  IoRequest request = take(1).front();
  EXPECT_FALSE(transfers_.end(request, 4));
  EXPECT_EQ(request.offset(), 504U);
  EXPECT_EQ(request.data(), memory_.data() + 4);
  EXPECT_EQ(request.left(), 6U);
  EXPECT_FALSE(transfers_.end(request, -EAGAIN));
  EXPECT_FALSE(transfers_.end(request, -EINTR));
  EXPECT_EQ(request.left(), 6U);
  EXPECT_TRUE(transfers_.end(request, 6));
  EXPECT_EQ(transfers_.wait_ended(kSoon)->error, 0);
}

TEST_F(IoTransfersTest, MakesNoMoreRequestsOfATransferThatFailed) {
  add(100, 0);
  add(5, 300);
  std::vector<IoRequest> requests = take(3);
  EXPECT_TRUE(transfers_.end(requests[1], -EIO));
  EXPECT_TRUE(transfers_.end(requests[0], 10));
  EXPECT_EQ(take(9).front().offset(), 300U);
  EXPECT_TRUE(transfers_.end(requests[2], -ENOSPC));
  EXPECT_EQ(transfers_.wait_ended(kSoon)->error, EIO);  // the first one
}

TEST_F(IoTransfersTest, WaitsAsLongAsRequestsEnd) {
  add(30, 0);
  std::vector<IoRequest> requests = take(3);
  EXPECT_FALSE(transfers_.wait_ended(kSoon).has_value());
  std::thread disk([&] {
    for (IoRequest& request : requests) {
      std::this_thread::sleep_for(std::chrono::milliseconds(250));
      transfers_.end(request, 10);
    }
  });
  EXPECT_TRUE(transfers_.wait_ended(std::chrono::milliseconds(600)).has_value());  // the three together need 750
  disk.join();
}

TEST_F(IoTransfersTest, TouchesNothingOnceItIsAbandoned) {
  add(30, 0);
  IoRequest request = take(1).front();
  transfers_.abandon();
  EXPECT_TRUE(take(9).empty());
  EXPECT_TRUE(transfers_.end(request, 4));  // not to be continued
}

TEST_F(IoTransfersTest, LeavesEachThreadItsShareOfATransfer) {
  IoTransfers shared(10, /*takers=*/2);
  shared.add({.file = &file_, .data = memory_.data(), .bytes = 100});
  std::vector<IoRequest> first, second;
  shared.take(32, first);
  EXPECT_EQ(first.size(), 5U);
  shared.take(32, second);
  EXPECT_EQ(second.size(), 3U);  // half of the rest; whoever is ready first takes what is left
}

}  // namespace
}  // namespace tessera::storage::io_queue_test
