#include <liburing.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <memory>
#include <thread>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/storage/io_worker.h"

namespace tessera::storage {
namespace {

// A thread and its ring. It waits in one place, for the ring, where a poll of `bell_` tells of new transfers.
class UringThread {
 public:
  UringThread(IoTransfers& transfers, const IoOptions& options) : transfers_(transfers), options_(options) {
    requests_.resize(static_cast<size_t>(options.depth));
    for (size_t slot = 0; slot < requests_.size(); ++slot) free_.push_back(slot);
    bell_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    open_ = bell_ >= 0 && io_uring_queue_init(static_cast<unsigned>(options.depth) + 1, &ring_, 0) == 0;
  }
  ~UringThread() {
    if (thread_.joinable()) {
      stopping_ = true;
      ring_bell();
      thread_.join();
    }
    if (open_) io_uring_queue_exit(&ring_);
    if (bell_ >= 0) close(bell_);
  }
  UringThread(const UringThread&) = delete;
  UringThread& operator=(const UringThread&) = delete;

  bool is_open() const { return open_; }

  void wake() {
    if (!thread_.joinable()) {
      thread_ = std::thread([this] { work(); });
      return;
    }
    ring_bell();
  }

 private:
  static constexpr uint64_t kBell = UINT64_MAX;  // what the poll's entries carry instead of a slot

  size_t in_flight() const { return requests_.size() - free_.size(); }

  void ring_bell() const {
    const uint64_t one = 1;
    static_cast<void>(write(bell_, &one, sizeof one));
  }

  void submit(unsigned wait_for) {
    int result = 0;
    do {
      result = io_uring_submit_and_wait(&ring_, wait_for);
    } while (result == -EINTR || result == -EAGAIN || result == -EBUSY);
    TESSERA_INVARIANT(result >= 0);
  }

  io_uring_sqe* new_entry() {
    io_uring_sqe* const entry = io_uring_get_sqe(&ring_);
    TESSERA_INVARIANT(entry != nullptr);
    return entry;
  }

  void listen_to_bell() {
    io_uring_sqe* const entry = new_entry();
    io_uring_prep_poll_add(entry, bell_, POLLIN);
    io_uring_sqe_set_data64(entry, kBell);
  }

  void prepare(size_t slot) {
    const IoRequest& request = requests_[slot];
    const auto bytes = static_cast<unsigned>(std::min<size_t>(request.left(), 1U << 30));
    io_uring_sqe* const entry = new_entry();
    if (request.transfer->writes) {
      io_uring_prep_write(entry, request.fd(), request.data(), bytes, request.offset());
    } else {
      io_uring_prep_read(entry, request.fd(), request.data(), bytes, request.offset());
    }
    io_uring_sqe_set_data64(entry, slot);
    if (options_.single_submit) submit(0);
  }

  void start_requests() {
    if (free_.empty() || (!options_.overlap_events && in_flight() > 0)) return;
    taken_.clear();
    transfers_.take(free_.size(), taken_);
    for (IoRequest& request : taken_) {
      const size_t slot = free_.back();
      free_.pop_back();
      requests_[slot] = std::move(request);
      prepare(slot);
    }
  }

  void ended(uint64_t carried, int result) {
    if (carried == kBell) {
      uint64_t count = 0;
      static_cast<void>(read(bell_, &count, sizeof count));
      listen_to_bell();
      return;
    }
    const auto slot = static_cast<size_t>(carried);
    if (!transfers_.end(requests_[slot], result)) {
      prepare(slot);
      return;
    }
    requests_[slot] = {};
    free_.push_back(slot);
  }

  void work() {
    listen_to_bell();
    while (true) {
      start_requests();
      if (stopping_ && in_flight() == 0) return;
      submit(options_.overlap_events ? 1 : std::max<unsigned>(1, static_cast<unsigned>(in_flight())));
      io_uring_cqe* entry = nullptr;
      while (io_uring_peek_cqe(&ring_, &entry) == 0) {
        const uint64_t carried = io_uring_cqe_get_data64(entry);
        const int result = entry->res;
        io_uring_cqe_seen(&ring_, entry);
        ended(carried, result);
      }
    }
  }

  IoTransfers& transfers_;
  const IoOptions options_;
  std::vector<IoRequest> requests_;  // slots
  std::vector<size_t> free_;
  std::vector<IoRequest> taken_;
  std::atomic<bool> stopping_ = false;
  int bell_ = -1;
  io_uring ring_{};
  bool open_ = false;
  std::thread thread_;
};

class UringWorker : public IoWorker {
 public:
  UringWorker(IoTransfers& transfers, const IoOptions& options) {
    for (int i = 0; i < options.threads; ++i) threads_.push_back(std::make_unique<UringThread>(transfers, options));
  }
  const char* engine() const override { return "io_uring"; }
  void wake() override {
    for (const auto& thread : threads_) thread->wake();
  }
  bool is_open() const {
    return std::all_of(threads_.begin(), threads_.end(), [](const auto& thread) { return thread->is_open(); });
  }

 private:
  std::vector<std::unique_ptr<UringThread>> threads_;
};

}  // namespace

std::unique_ptr<IoWorker> make_uring_worker(IoTransfers& transfers, const IoOptions& options) {
  auto worker = std::make_unique<UringWorker>(transfers, options);
  return worker->is_open() ? std::move(worker) : nullptr;
}

}  // namespace tessera::storage
