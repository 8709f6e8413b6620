#include "tests/support/far_stream.h"

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

namespace tessera::test {
namespace {

// One recording; streams that wait for it keep it.
class Mark {
 public:
  void pass() {
    const std::lock_guard lock(mutex_);
    has_passed_ = true;
    passed_.notify_all();
  }
  bool has_passed() {
    const std::lock_guard lock(mutex_);
    return has_passed_;
  }
  void await() {
    std::unique_lock lock(mutex_);
    passed_.wait(lock, [this] { return has_passed_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable passed_;
  bool has_passed_ = false;
};

// The thread begins with the first work, so that a process which only has the device can still fork.
class FarStream : public FarStreamHandle {
 public:
  explicit FarStream(void* (*near)(const void*)) {
    near_of = near;
    FarStreamHandle::enqueue = [](FarStreamHandle* stream, void (*run)(void*), void* argument) {
      static_cast<FarStream*>(stream)->queue([run, argument] { run(argument); });
    };
  }

  void queue(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    if (!has_thread_) std::thread([this] { run(); }).detach();
    has_thread_ = true;
    works_.push_back(std::move(work));
    changed_.notify_all();
  }

  void record(const std::shared_ptr<Mark>& mark) {
    if (is_idle()) return mark->pass();
    queue([mark] { mark->pass(); });
  }

  void block(const std::shared_ptr<Mark>& mark) {
    if (!mark->has_passed()) queue([mark] { mark->await(); });
  }

  bool is_idle() {
    const std::lock_guard lock(mutex_);
    return works_.empty();
  }

  void drain() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return works_.empty(); });
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return !works_.empty(); });
      const std::function<void()> work = works_.front();
      lock.unlock();
      work();
      lock.lock();
      works_.pop_front();
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> works_;  // the first is running
  bool has_thread_ = false;
};

void* (*the_near_of)(const void*) = nullptr;
thread_local c10::StreamId the_current = 0;

// Never destroyed: their threads use them to the end of the process.
FarStream& stream_of(c10::StreamId id, bool is_new = false) {
  static std::mutex mutex;
  static auto& streams = *new std::deque<FarStream>();
  const std::lock_guard lock(mutex);
  if (streams.empty()) streams.emplace_back(the_near_of);
  if (is_new) streams.emplace_back(the_near_of);
  return is_new ? streams.back() : streams.at(static_cast<size_t>(id));
}

using MarkPtr = std::shared_ptr<Mark>;

}  // namespace

void set_near_of(void* (*near_of)(const void* far_address)) { the_near_of = near_of; }

c10::StreamId new_far_stream() {
  static std::mutex mutex;
  static c10::StreamId last = 0;
  const std::lock_guard lock(mutex);
  stream_of(0, /*is_new=*/true);
  return ++last;
}

c10::StreamId current_far_stream() { return the_current; }

c10::StreamId exchange_far_stream(c10::StreamId stream) { return std::exchange(the_current, stream); }

FarStreamHandle* far_stream_handle(c10::StreamId stream) { return &stream_of(stream); }

void drain_far_stream(c10::StreamId stream) { stream_of(stream).drain(); }

bool is_far_stream_idle(c10::StreamId stream) { return stream_of(stream).is_idle(); }

void record_far_event(void** event, c10::StreamId stream) {
  if (*event == nullptr) *event = new MarkPtr;
  auto& mark = *static_cast<MarkPtr*>(*event);
  mark = std::make_shared<Mark>();
  stream_of(stream).record(mark);
}

void block_on_far_event(void* event, c10::StreamId stream) {
  if (event != nullptr) stream_of(stream).block(*static_cast<MarkPtr*>(event));
}

bool has_far_event_passed(void* event) { return event == nullptr || (*static_cast<MarkPtr*>(event))->has_passed(); }

void await_far_event(void* event) {
  if (event != nullptr) (*static_cast<MarkPtr*>(event))->await();
}

void destroy_far_event(void* event) noexcept { delete static_cast<MarkPtr*>(event); }

}  // namespace tessera::test
