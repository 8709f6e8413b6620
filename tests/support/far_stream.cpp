#include "tests/support/far_stream.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdio>
#include <deque>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

#include "tests/support/far_recorder.h"

namespace tessera::test {

// One recording; streams that wait for it keep it.
class FarMark {
 public:
  FarMark(c10::StreamId on, FarClock before) : on_(on), before_(std::move(before)) {}

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
  c10::StreamId on() const { return on_; }
  const FarClock& before() const { return before_; }

 private:
  const c10::StreamId on_;
  const FarClock before_;  // what has ended once it has passed
  std::mutex mutex_;
  std::condition_variable passed_;
  bool has_passed_ = false;
};

namespace {

using FarMarkPtr = std::shared_ptr<FarMark>;

// What the streams share. The order in which this lock is taken is the order of the operations.
struct Order {
  std::mutex mutex;
  FarMode mode;
  FarFacts facts;
  FarRecorder recorder;
  FarClock host;  // what the host has waited for
};

Order& order() {
  static auto* const the_order = new Order;
  return *the_order;
}

thread_local FarClock the_asked;  // what this thread has asked for, and had ended

// The same of all threads: whoever drops a tensor last knows what those knew that dropped it before.
class AskedByAny {
 public:
  void learn(const FarClock& clock) {
    const std::lock_guard lock(mutex_);
    clock_.learn(clock);
  }
  void tell(FarClock& clock) {
    const std::lock_guard lock(mutex_);
    clock.learn(clock_);
  }
  void forget() { clock_ = {}; }

 private:
  std::mutex mutex_;  // nothing else is locked under it
  FarClock clock_;
};

AskedByAny& asked_by_any() {
  static auto* const the_clock = new AskedByAny;
  return *the_clock;
}

// The first operation that failed.
class Failure {
 public:
  void set(const std::string& text) {
    const std::lock_guard lock(mutex_);
    if (text_.empty()) std::fprintf(stderr, "far device: %s\n", text.c_str());
    if (text_.empty()) text_ = text;
  }
  void check() {
    const std::lock_guard lock(mutex_);
    TORCH_CHECK(text_.empty(), "an operation on the far device failed: ", text_);
  }

 private:
  std::mutex mutex_;
  std::string text_;
};

Failure& failure() {
  static auto* const the_failure = new Failure;
  return *the_failure;
}

// The thread begins with the first work, so that a process which only has the device can still fork.
class FarStream : public FarStreamHandle {
 public:
  FarStream(c10::StreamId id, void* (*near)(const void*)) : id_(id) {
    near_of = near;
    FarStreamHandle::enqueue = [](FarStreamHandle* stream, const Work& work) {
      const std::vector<FarAccess> accesses(work.accesses, work.accesses + work.count);
      enqueue_far(static_cast<FarStream*>(stream)->id_, work.name, accesses,
                  [run = work.run, argument = work.argument] { run(argument); });
    };
  }

  // The operation's place is here: under the order's lock.
  void take_place(const std::string& name, const std::vector<FarAccess>& accesses) {
    clock_.learn(the_asked);
    place(clock_, name, accesses);
  }
  void take_place_apart(const std::string& name, const std::vector<FarAccess>& accesses) {
    FarClock before = clock_;
    asked_by_any().tell(before);
    place(before, name, accesses);
  }
  FarClock clock() {
    FarClock all = clock_;
    all.learn(order().host);
    return all;
  }
  void learn(const FarClock& clock) { clock_.learn(clock); }

  void queue(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    if (!has_thread_) std::thread([this] { run(); }).detach();
    has_thread_ = true;
    works_.push_back(std::move(work));
    changed_.notify_all();
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
  void place(FarClock& before, const std::string& name, const std::vector<FarAccess>& accesses) {
    before.learn(order().host);
    clock_.learn(id_, ++number_);
    if (!order().mode.records) return;
    order().recorder.add({name, id_, number_, before, accesses}, &order().facts.races);
  }

  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return !works_.empty(); });
      std::function<void()> work = std::move(works_.front());
      lock.unlock();
      work();
      work = nullptr;  // frees what it holds
      lock.lock();
      works_.pop_front();
      changed_.notify_all();
    }
  }

  const c10::StreamId id_;
  uint64_t number_ = 0;
  FarClock clock_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> works_;  // the first is running
  bool has_thread_ = false;
};

void* (*the_near_of)(const void*) = nullptr;
thread_local c10::StreamId the_current = 0;

// Never destroyed: their threads use them to the end of the process.
class Streams {
 public:
  FarStream& at(c10::StreamId id) {
    const std::lock_guard lock(mutex_);
    if (streams_->empty()) add();
    return streams_->at(static_cast<size_t>(id));
  }
  c10::StreamId make() {
    const std::lock_guard lock(mutex_);
    if (streams_->empty()) add();
    add();
    return static_cast<c10::StreamId>(streams_->size() - 1);
  }
  size_t count() {
    const std::lock_guard lock(mutex_);
    return streams_->size();
  }
  void forget() {
    const size_t many = streams_->size();
    streams_ = new std::deque<FarStream>();
    while (streams_->size() < many) add();
  }

 private:
  void add() { streams_->emplace_back(static_cast<c10::StreamId>(streams_->size()), the_near_of); }

  std::mutex mutex_;
  std::deque<FarStream>* streams_ = new std::deque<FarStream>();
};

Streams& streams() {
  static auto* const the_streams = new Streams;
  return *the_streams;
}

// As a GPU that is busy: mostly a little behind the host, sometimes far.
void wait_a_little(uint64_t seed, c10::StreamId stream) {
  if (seed == 0) return;
  thread_local std::mt19937_64 draws(seed * 1000 + static_cast<uint64_t>(stream));
  const uint64_t draw = draws();
  if (draw % 64 == 0) {
    usleep(static_cast<useconds_t>(draw / 64 % 2000));
  } else if (draw % 4 == 0) {
    usleep(static_cast<useconds_t>(draw / 64 % 100));
  }
}

std::function<void()> guarded(c10::StreamId stream, const std::string& name, std::function<void()> work) {
  return [=, seed = order().mode.late ? order().mode.seed : 0, work = std::move(work)] {
    wait_a_little(seed, stream);
    try {
      work();
    } catch (const std::exception& error) {
      const std::string text = error.what();
      failure().set(name + " on stream " + std::to_string(stream) + ": " + text.substr(0, text.find('\n')));
    }
  };
}

void learn_as_host(const FarClock& clock) {
  const std::lock_guard lock(order().mutex);
  order().host.learn(clock);
  ++order().facts.host_waits;
}

void drain(c10::StreamId id, bool waits) {
  FarStream& stream = streams().at(id);
  FarClock clock;
  {
    const std::lock_guard lock(order().mutex);
    clock = stream.clock();
  }
  stream.drain();
  failure().check();
  if (waits) learn_as_host(clock);
}

FarMarkPtr& mark_of(void* event) { return *static_cast<FarMarkPtr*>(event); }

}  // namespace

void set_near_of(void* (*near_of)(const void* far_address)) { the_near_of = near_of; }

c10::StreamId new_far_stream() { return streams().make(); }

c10::StreamId current_far_stream() { return the_current; }

c10::StreamId exchange_far_stream(c10::StreamId stream) { return std::exchange(the_current, stream); }

FarStreamHandle* far_stream_handle(c10::StreamId stream) { return &streams().at(stream); }

void enqueue_far(c10::StreamId id, const std::string& name, const std::vector<FarAccess>& accesses,
                 std::function<void()> work) {
  failure().check();
  FarStream& stream = streams().at(id);
  const std::lock_guard lock(order().mutex);
  stream.take_place(name, accesses);
  stream.queue(guarded(id, name, std::move(work)));
}

void run_far(c10::StreamId id, const std::string& name, const std::vector<FarAccess>& accesses,
             const std::function<void()>& work, bool waits) {
  FarStream& stream = streams().at(id);
  {
    const std::lock_guard lock(order().mutex);
    stream.take_place(name, accesses);
  }
  drain(id, waits);
  work();
}

void enqueue_far_poison(c10::StreamId id, const void* begin, size_t bytes, std::function<void()> work) {
  FarStream& stream = streams().at(id);
  const std::lock_guard lock(order().mutex);
  stream.take_place_apart("free", {{begin, bytes, /*writes=*/true}});
  stream.is_idle() ? work() : stream.queue(std::move(work));
}

void drain_far_stream(c10::StreamId stream) { drain(stream, /*waits=*/true); }

void drain_far_streams() {
  for (size_t i = 0; i < streams().count(); ++i) drain(static_cast<c10::StreamId>(i), /*waits=*/true);
}

void settle_far_streams() {
  for (size_t i = 0; i < streams().count(); ++i) streams().at(static_cast<c10::StreamId>(i)).drain();
}

bool is_far_stream_idle(c10::StreamId id) {
  FarStream& stream = streams().at(id);
  const std::lock_guard lock(order().mutex);
  if (!stream.is_idle()) return false;
  the_asked.learn(stream.clock());
  asked_by_any().learn(stream.clock());
  return true;
}

std::shared_ptr<FarMark> mark_far_stream(c10::StreamId id) {
  FarStream& stream = streams().at(id);
  const std::lock_guard lock(order().mutex);
  stream.learn(the_asked);
  auto mark = std::make_shared<FarMark>(id, stream.clock());
  stream.is_idle() ? mark->pass() : stream.queue([mark] { mark->pass(); });
  return mark;
}

bool has_passed(const std::shared_ptr<FarMark>& mark) {
  if (!mark->has_passed()) return false;
  the_asked.learn(mark->before());
  asked_by_any().learn(mark->before());
  return true;
}

void record_far_event(void** event, c10::StreamId stream) {
  if (*event == nullptr) *event = new FarMarkPtr;
  {
    const std::lock_guard lock(order().mutex);
    if (++order().facts.records == order().mode.drop_record) return;
  }
  mark_of(*event) = mark_far_stream(stream);
}

void block_on_far_event(void* event, c10::StreamId id) {
  if (event == nullptr) return;
  FarStream& stream = streams().at(id);
  const std::lock_guard lock(order().mutex);
  const FarMarkPtr mark = mark_of(event);
  const int64_t number = ++order().facts.waits;
  if (!mark || number == order().mode.drop_wait) return;
  if (!stream.clock().knows(mark->before())) order().facts.new_waits.push_back({number, id, mark->on()});
  stream.learn(mark->before());
  if (!mark->has_passed()) stream.queue([mark] { mark->await(); });
}

bool has_far_event_passed(void* event) { return event == nullptr || !mark_of(event) || has_passed(mark_of(event)); }

void await_far_event(void* event) {
  if (event == nullptr || !mark_of(event)) return;
  mark_of(event)->await();
  failure().check();
  learn_as_host(mark_of(event)->before());
}

void destroy_far_event(void* event) noexcept { delete static_cast<FarMarkPtr*>(event); }

void forget_far_accesses(const void* begin, size_t bytes) {
  const std::lock_guard lock(order().mutex);
  order().recorder.forget(begin, bytes);
}

void leave_parents_streams() {
  streams().forget();
  order().host = {};
  order().recorder.clear();
  the_asked = {};
  asked_by_any().forget();
}

void set_far_streams_mode(const FarMode& mode) {
  const std::lock_guard lock(order().mutex);
  order().mode = mode;
  order().facts = {};
  order().recorder.clear();
}

bool is_far_late() {
  const std::lock_guard lock(order().mutex);
  return order().mode.late;
}

FarFacts far_stream_facts() {
  const std::lock_guard lock(order().mutex);
  return order().facts;
}

}  // namespace tessera::test
