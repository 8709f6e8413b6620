#include "tessera/storage/io_queue.h"

#include <fmt/format.h>
#include <liburing.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>

#include "tessera/base/error.h"

namespace tessera::storage {

struct IoQueue::Operation {
  const IoFile* file = nullptr;
  bool writes = false;
  char* data = nullptr;
  size_t bytes = 0;
  uint64_t offset = 0;
  size_t tag = 0;
};

// What moves the bytes. Results are those of pread and pwrite, errors as negative errno.
class IoQueue::Engine {
 public:
  struct Ended {
    size_t slot;
    int64_t result;
  };
  virtual ~Engine() = default;
  virtual const char* name() const = 0;
  virtual void submit(size_t slot, const Operation& operation) = 0;
  virtual Ended wait() = 0;
};

class IoQueue::Uring : public Engine {
 public:
  // Null where the kernel has no io_uring or forbids it.
  static std::unique_ptr<Engine> open(int depth) {
    auto engine = std::unique_ptr<Uring>(new Uring);
    if (io_uring_queue_init(static_cast<unsigned>(depth), &engine->ring_, 0) != 0) return nullptr;
    engine->open_ = true;
    return engine;
  }
  ~Uring() override {
    if (open_) io_uring_queue_exit(&ring_);
  }
  const char* name() const override { return "io_uring"; }

  void submit(size_t slot, const Operation& operation) override {
    io_uring_sqe* const entry = io_uring_get_sqe(&ring_);
    TESSERA_INVARIANT(entry != nullptr);
    const auto bytes = static_cast<unsigned>(std::min<size_t>(operation.bytes, 1U << 30));
    if (operation.writes) {
      io_uring_prep_write(entry, operation.file->fd, operation.data, bytes, operation.offset);
    } else {
      io_uring_prep_read(entry, operation.file->fd, operation.data, bytes, operation.offset);
    }
    io_uring_sqe_set_data64(entry, slot);
    int submitted = 0;
    do {
      submitted = io_uring_submit(&ring_);
    } while (submitted == -EINTR || submitted == -EAGAIN);
    TESSERA_INVARIANT(submitted == 1);
  }

  Ended wait() override {
    io_uring_cqe* entry = nullptr;
    int waited = 0;
    do {
      waited = io_uring_wait_cqe(&ring_, &entry);
    } while (waited == -EINTR);
    TESSERA_INVARIANT(waited == 0);
    const Ended ended{static_cast<size_t>(io_uring_cqe_get_data64(entry)), entry->res};
    io_uring_cqe_seen(&ring_, entry);
    return ended;
  }

 private:
  Uring() = default;
  io_uring ring_{};
  bool open_ = false;
};

class IoQueue::Threads : public Engine {
 public:
  explicit Threads(int count) {
    for (int i = 0; i < count; ++i) workers_.emplace_back([this] { work(); });
  }
  ~Threads() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }
  const char* name() const override { return "threads"; }

  void submit(size_t slot, const Operation& operation) override {
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back({slot, operation});
    }
    changed_.notify_all();
  }

  Ended wait() override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !ended_.empty(); });
    const Ended ended = ended_.front();
    ended_.pop_front();
    return ended;
  }

 private:
  struct Job {
    size_t slot;
    Operation operation;
  };

  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      const auto [slot, operation] = waiting_.front();
      waiting_.pop_front();
      lock.unlock();
      const auto offset = static_cast<off_t>(operation.offset);
      int64_t result = 0;
      do {
        result = operation.writes ? pwrite(operation.file->fd, operation.data, operation.bytes, offset)
                                  : pread(operation.file->fd, operation.data, operation.bytes, offset);
      } while (result < 0 && errno == EINTR);
      if (result < 0) result = -errno;
      lock.lock();
      ended_.push_back({slot, result});
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> waiting_;
  std::deque<Ended> ended_;
  bool stopping_ = false;
  std::vector<std::thread> workers_;
};

IoQueue::IoQueue(int depth) : depth_(depth), operations_(static_cast<size_t>(depth)) {
  for (int slot = 0; slot < depth; ++slot) free_.push_back(static_cast<size_t>(slot));
  const char* const asked = std::getenv("TESSERA_IO");
  if (asked == nullptr || std::strcmp(asked, "threads") != 0) engine_ = Uring::open(depth);
  if (!engine_) engine_ = std::make_unique<Threads>(std::min(depth, 4));
}

IoQueue::~IoQueue() {
  while (in_flight_ > 0) {
    engine_->wait();
    --in_flight_;
  }
}

const char* IoQueue::engine() const { return engine_->name(); }

void IoQueue::start(Operation operation) {
  if (operation.bytes == 0) return;
  while (free_.empty()) wait_one();
  const size_t slot = free_.back();
  free_.pop_back();
  operations_[slot] = operation;
  engine_->submit(slot, operation);
  ++in_flight_;
}

void IoQueue::start_write(const IoFile& file, const void* data, size_t bytes, uint64_t offset, size_t tag) {
  char* const from = const_cast<char*>(static_cast<const char*>(data));
  start({.file = &file, .writes = true, .data = from, .bytes = bytes, .offset = offset, .tag = tag});
}

void IoQueue::start_read(const IoFile& file, void* data, size_t bytes, uint64_t offset, size_t tag) {
  start({.file = &file, .data = static_cast<char*>(data), .bytes = bytes, .offset = offset, .tag = tag});
}

size_t IoQueue::wait_one() {
  TESSERA_INVARIANT(in_flight_ > 0);
  while (true) {
    const auto [slot, result] = engine_->wait();
    Operation& operation = operations_[slot];
    const bool again = result == -EINTR || result == -EAGAIN;
    if (again || (result > 0 && static_cast<size_t>(result) < operation.bytes)) {
      const auto done = static_cast<size_t>(again ? 0 : result);
      operation.data += done;
      operation.bytes -= done;
      operation.offset += done;
      engine_->submit(slot, operation);
      continue;
    }
    --in_flight_;
    free_.push_back(slot);
    if (result > 0) return operation.tag;
    const std::string& path = operation.file->path;
    if (operation.writes) {
      throw Error(ErrorKind::kMachine,
                  {"writing failed: " + errno_text(result == 0 ? ENOSPC : static_cast<int>(-result)), path,
                   "free some space or choose another folder"});
    }
    const std::string why = result == 0 ? fmt::format("it ends before byte {}", operation.offset + operation.bytes)
                                        : errno_text(static_cast<int>(-result));
    throw Error(ErrorKind::kMachine,
                {"reading failed: " + why, path, "check the disk, or use another copy of the file"});
  }
}

void IoQueue::wait_all() {
  while (in_flight_ > 0) wait_one();
}

}  // namespace tessera::storage
