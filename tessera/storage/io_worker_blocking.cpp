#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>
#include <vector>

#include "tessera/storage/io_worker.h"

namespace tessera::storage {
namespace {

constexpr int kMostThreads = 16;

class BlockingWorker : public IoWorker {
 public:
  BlockingWorker(IoTransfers& transfers, int threads) : transfers_(transfers), count_(threads) {}
  ~BlockingWorker() override {
    transfers_.stop();
    for (std::thread& thread : threads_) thread.join();
  }
  const char* engine() const override { return "threads"; }

  void wake() override {  // those that wait in wait_for_one() have been told
    while (threads_.size() < static_cast<size_t>(count_)) threads_.emplace_back([this] { work(); });
  }

 private:
  void work() {
    while (std::optional<IoRequest> request = transfers_.wait_for_one()) {
      int64_t result = 0;
      do {
        const auto offset = static_cast<off_t>(request->offset());
        result = request->transfer->writes ? pwrite(request->fd(), request->data(), request->left(), offset)
                                           : pread(request->fd(), request->data(), request->left(), offset);
        if (result < 0) result = -errno;
      } while (!transfers_.end(*request, result));
    }
  }

  IoTransfers& transfers_;
  const int count_;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<IoWorker> make_blocking_worker(IoTransfers& transfers, const IoOptions& options) {
  return std::make_unique<BlockingWorker>(transfers, std::min(options.depth * options.threads, kMostThreads));
}

}  // namespace tessera::storage
