#include "tessera/comm/nccl/communicator.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <condition_variable>
#include <deque>
#include <thread>
#include <utility>

#include "tessera/base/abandonable_thread.h"
#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/comm/current_stream.h"

namespace tessera::comm::nccl {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
using TimePoint = steady_clock::time_point;

constexpr microseconds kPoll{50};      // while something is in flight
constexpr milliseconds kPollLater{1};  // … and has been for kSoon
constexpr milliseconds kSoon{20};
constexpr milliseconds kLook{2'000};  // for a rank that asks who is missing
constexpr milliseconds kAnswersTake{4'500};
constexpr milliseconds kStoreTakes{5'000};
constexpr milliseconds kFarewellTakes{2'000};
constexpr milliseconds kAbortTakes{5'000};
constexpr milliseconds kCallTakes{100};  // on the host, if it does not wait for others

bool goes_well(Result result) { return result == Result::kSuccess || result == Result::kInProgress; }

// The communicator's owner has gone, and what was in flight has not ended.
struct Unwanted {};

std::string started_by(const std::string& key, int rank) { return fmt::format("{}/started by rank {}", key, rank); }

int64_t number_of(const std::string& text) {
  int64_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

}  // namespace

StoreConnection::StoreConnection(c10d::Store& store) : store_(store.clone()) { store_->setTimeout(kStoreTakes); }

bool StoreConnection::has(const std::string& key) {
  const std::lock_guard lock(mutex_);
  return store_->check({key});
}

std::string StoreConnection::get(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const std::vector<uint8_t> value = store_->get(key);
  return {value.begin(), value.end()};
}

void StoreConnection::set(const std::string& key, const std::string& value) {
  const std::lock_guard lock(mutex_);
  store_->set(key, std::vector<uint8_t>(value.begin(), value.end()));
}

Run::Run(Library nccl, std::shared_ptr<StoreConnection> connection, milliseconds at_most)
    : library(std::move(nccl)), store(std::move(connection)), timeout(at_most) {}

PeerFailure Run::fail(const PeerFailure& failure) {
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = failure;
  return *failure_;
}

void Run::require_well() {
  const std::lock_guard lock(mutex_);
  if (failure_) throw PeerFailure(*failure_);
}

struct Communicator::Operation {
  enum class Stage {
    kQueued,    // `launch` holds the tensors
    kLaunched,  // … until `done` has passed
    kOver,      // they are the caller's
  };

  Launch launch;
  c10::Event ready, done;
  int64_t number;  // of those of this communicator, from 1
  TimePoint begin = steady_clock::now();
  Stage stage = Stage::kQueued;
};

// Shared with the thread, which a call of NCCL's that does not return may hold longer than the communicator lives.
class Communicator::State {
 public:
  State(std::shared_ptr<Run> run, Place place) : run_(std::move(run)), place_(std::move(place)) {}

  const Place& place() const { return place_; }

  void run() {
    try {
      const c10::impl::VirtualGuardImpl guard(place_.device.type());
      guard.setDevice(place_.device);
      const at::NoGradGuard no_grad;
      if (await_first()) {
        const c10::StreamGuard on_stream(guard.getStreamFromGlobalPool(place_.device, /*isHighPriority=*/true));
        stream_ = on_stream.current_stream();
        bring_up();
        while (advance()) {
        }
        take_leave();
      }
    } catch (const Unwanted&) {
    } catch (const PeerFailure& failure) {
      fail(failure);
    } catch (const std::exception& error) {
      const std::string text = error.what();
      fail(PeerFailure(-1, /*late=*/false, text.substr(0, text.find('\n'))));
    }
    abandon();
    std::vector<Launch> held;
    const std::lock_guard lock(mutex_);
    for (auto* const operations : {&queue_, &in_flight_}) {
      for (const auto& operation : *operations) held.push_back(std::move(operation->launch));
    }
    over_ = true;
    changed_.notify_all();
  }

  std::shared_ptr<Operation> start(Launch launch) {
    run_->require_well();
    const auto type = place_.device.type();
    const auto operation = std::make_shared<Operation>(
        Operation{.launch = std::move(launch), .ready = c10::Event(type), .done = c10::Event(type)});
    operation->ready.record(current_stream(place_.device));
    const std::lock_guard lock(mutex_);
    operation->number = ++started_;
    queue_.push_back(operation);
    changed_.notify_all();
    return operation;
  }

  // Until it is over.
  void wait(const Operation& operation, TimePoint deadline) {
    await(deadline, [&] { return operation.stage == Operation::Stage::kOver; });
    operation.done.synchronize();  // it has passed; tools that follow streams see that the host has waited for it
  }

  void wait_on(const Operation& operation, const c10::Stream& stream, TimePoint deadline) {
    await(deadline, [&] {
      if (operation.stage == Operation::Stage::kQueued) return false;
      operation.done.block(stream);
      return true;
    });
  }

  // Lets go of the thread within a bounded time.
  void stop(std::thread& thread) {
    std::unique_lock lock(mutex_);
    stop_at_ = steady_clock::now() + kFarewellTakes;
    changed_.notify_all();
    const auto is_over = [this] { return over_; };
    bool over = changed_.wait_for(lock, 2 * kFarewellTakes + kAbortTakes, is_over);
    lock.unlock();
    if (!over) {
      abandon();
      lock.lock();
      over = changed_.wait_for(lock, kFarewellTakes, is_over);
      lock.unlock();
    }
    over ? thread.join() : thread.detach();
  }

  std::unique_lock<std::timed_mutex> lock_calls() {
    std::unique_lock lock(calls_);
    if (is_aborted_) throw first_failure();
    return lock;
  }

  // Until NCCL has done on the host what it was asked to. A collective's kernel may be launched only then.
  void settle(CommHandle comm, const char* function, TimePoint deadline) {
    Result state = Result::kInProgress;
    while (true) {
      {
        const auto lock = lock_calls();
        const Result asked = run_->library.comm_get_async_error(comm, &state);
        if (asked != Result::kSuccess) state = asked;
      }
      if (state == Result::kSuccess) return;
      require(state, function);
      attend(deadline, kPoll);
    }
  }

  // What NCCL returns while it does as asked.
  void require(Result result, const char* function) {
    if (goes_well(result)) return;
    const std::string reason = fmt::format("{}: {}", function, run_->library.get_error_string(result));
    if (result != Result::kRemoteError) throw PeerFailure(-1, /*late=*/false, reason);
    throw reported(reason);
  }

 private:
  using Stage = Operation::Stage;

  // False where there was none until the end.
  bool await_first() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return stop_at_.has_value() || !queue_.empty(); });
    return !queue_.empty();
  }

  // Rank 0 of the communicator makes the id. Its own communicator for each group, and no split of the world's: to a
  // split every rank of the parent has to come, to a group only its members do.
  void bring_up() {
    const TimePoint deadline = queue_front_deadline();
    const std::string id_key = place_.key + "/id";
    UniqueId id{};
    if (place_.rank == 0) {
      require(run_->library.get_unique_id(&id), "ncclGetUniqueId");
      run_->store->set(id_key, std::string(id.bytes, sizeof(id.bytes)));
    } else {
      while (!run_->store->has(id_key)) attend(deadline, 5 * kPollLater);
      const std::string told = run_->store->get(id_key);
      TESSERA_INVARIANT(told.size() == sizeof(id.bytes));
      std::copy(told.begin(), told.end(), id.bytes);
    }
    Config config;
    CommHandle comm = nullptr;
    const auto size = static_cast<int>(place_.members.size());
    require(run_->library.comm_init_rank_config(&comm, size, id, place_.rank, &config), kInit);
    {
      const auto lock = lock_calls();
      comm_ = comm;
    }
    settle(comm, kInit, deadline);
    log_debug("NCCL connects {} ranks ({})", size, place_.key);
  }

  TimePoint queue_front_deadline() {
    const std::lock_guard lock(mutex_);
    return queue_.front()->begin + run_->timeout;
  }

  // One look at everything. False once there is no more to do.
  bool advance() {
    std::shared_ptr<Operation> next;
    {
      std::unique_lock lock(mutex_);
      const auto wakes = [this] { return !queue_.empty() || (stop_at_.has_value() && in_flight_.empty()) || failed_; };
      changed_.wait_for(lock, pause(), wakes);
      if (failed_) return false;
      if (!queue_.empty()) {
        next = queue_.front();
      } else if (stop_at_ && (in_flight_.empty() || steady_clock::now() > *stop_at_)) {
        return false;
      }
    }
    if (next) launch(*next);
    look_at_stream();
    attend(earliest_deadline(), microseconds(0));
    return true;
  }

  microseconds pause() const {
    if (in_flight_.empty()) return kLook;
    return steady_clock::now() - in_flight_.front()->begin < kSoon ? kPoll : microseconds(kPollLater);
  }

  void launch(Operation& operation) {
    operation.ready.block(*stream_);
    Calls calls(*this, run_->library, comm_, stream_->native_handle(), operation.begin + run_->timeout);
    operation.launch(calls);
    operation.done.record(*stream_);
    const std::lock_guard lock(mutex_);
    operation.stage = Stage::kLaunched;
    in_flight_.push_back(std::move(queue_.front()));
    queue_.pop_front();
    changed_.notify_all();
  }

  // Lets go of what has ended, in the order of the stream; asks NCCL while there is more.
  void look_at_stream() {
    std::vector<Launch> ended;
    bool waits = false;
    {
      const std::lock_guard lock(mutex_);
      while (!in_flight_.empty() && in_flight_.front()->done.query()) {
        ended.push_back(std::move(in_flight_.front()->launch));
        in_flight_.front()->stage = Stage::kOver;
        in_flight_.pop_front();
      }
      if (!ended.empty()) changed_.notify_all();
      waits = !in_flight_.empty();
    }
    if (!waits) return;
    Result state = Result::kSuccess;
    {
      const CommHandle comm = comm_;  // before it is looked whether that is aborted
      const auto lock = lock_calls();
      const Result asked = run_->library.comm_get_async_error(comm, &state);
      if (asked != Result::kSuccess) state = asked;
    }
    if (goes_well(state)) return;
    throw reported(fmt::format("NCCL reports: {}", run_->library.get_error_string(state)));
  }

  TimePoint earliest_deadline() {
    const std::lock_guard lock(mutex_);
    return in_flight_.empty() ? TimePoint::max() : in_flight_.front()->begin + run_->timeout;
  }

  // Between two looks of a wait of this thread. Throws once it has taken too long, or nobody wants it any more.
  void attend(TimePoint deadline, microseconds rest) {
    {
      std::unique_lock lock(mutex_);
      if (rest.count() > 0) changed_.wait_for(lock, rest, [this] { return failed_; });
      if (stop_at_ && steady_clock::now() > *stop_at_) throw Unwanted();
    }
    run_->require_well();
    const auto now = steady_clock::now();
    if (now > deadline) throw failure_of_time();
    if (now < next_look_) return;
    next_look_ = now + kLook;
    if (run_->store->has(asked_key())) say_started();
  }

  std::string asked_key() const { return place_.key + "/asked"; }

  void say_started() {
    int64_t started = 0;
    {
      const std::lock_guard lock(mutex_);
      started = started_;
    }
    run_->store->set(started_by(place_.key, place_.rank), std::to_string(started));
  }

  PeerFailure first_failure() { return run_->fail(PeerFailure(-1, /*late=*/false, "NCCL's communicator is no more")); }

  // A host that waits meanwhile, and whose time is over, says so too.
  PeerFailure reported(const std::string& reason) {
    {
      const std::lock_guard lock(mutex_);
      reported_ = reason;
    }
    return failure_of_time();
  }

  // Of the oldest collective, which has not ended in time, or will not, as NCCL has reported.
  PeerFailure failure_of_time() {
    const int peer = missing_member().value_or(-1);
    const std::lock_guard lock(mutex_);
    return {peer, /*late=*/reported_.empty(), reported_};
  }

  // The oldest collective that has not ended.
  int64_t oldest() {
    const std::lock_guard lock(mutex_);
    if (!in_flight_.empty()) return in_flight_.front()->number;
    return queue_.empty() ? started_ : queue_.front()->number;
  }

  // The first member, by its rank in the world, that has not started that one, or does not answer.
  std::optional<int> missing_member() {
    const int64_t number = oldest();
    try {
      say_started();
      run_->store->set(asked_key(), "");
      const TimePoint end = steady_clock::now() + kAnswersTake;
      for (size_t member = 0; member < place_.members.size(); ++member) {
        const std::string key = started_by(place_.key, static_cast<int>(member));
        while (!run_->store->has(key) || number_of(run_->store->get(key)) < number) {
          if (steady_clock::now() > end) return place_.members[member];
          std::this_thread::sleep_for(50 * kPollLater);
        }
      }
      return std::nullopt;
    } catch (const std::exception&) {  // the store is gone, and rank 0 with it
      return 0;
    }
  }

  // `is_there` is asked under the lock.
  template <class IsThere>
  void await(TimePoint deadline, const IsThere& is_there) {
    std::unique_lock lock(mutex_);
    while (!is_there()) {
      if (failed_ || over_) throw first_failure();
      if (changed_.wait_until(lock, deadline) != std::cv_status::timeout || is_there() || failed_) continue;
      lock.unlock();
      fail(failure_of_time());
      abandon();
      lock.lock();
    }
  }

  void fail(const PeerFailure& failure) {
    run_->fail(failure);
    const std::lock_guard lock(mutex_);
    failed_ = true;
    changed_.notify_all();
  }

  // Peers that have gone already are no failure of the run.
  void take_leave() {
    TimePoint deadline;
    {
      const std::lock_guard lock(mutex_);
      if (failed_ || !in_flight_.empty()) return;
      deadline = *stop_at_;
    }
    try {
      Calls calls(*this, run_->library, comm_, nullptr, deadline);
      calls.call("ncclCommFinalize",
                 [](const Library& nccl, CommHandle comm, void*) { return nccl.comm_finalize(comm); });
    } catch (const PeerFailure&) {
      return;
    }
    const auto lock = lock_calls();
    if (const CommHandle comm = comm_.exchange(nullptr)) run_->library.comm_destroy(comm);
  }

  // What still runs ends. Any thread.
  void abandon() {
    const bool beside_calls = run_->library.aborts_beside_calls;
    const std::unique_lock lock(calls_, beside_calls ? kCallTakes : kAbortTakes);
    if (!lock.owns_lock() && !beside_calls) return;
    if (is_aborted_.exchange(true)) return;
    const CommHandle comm = comm_.exchange(nullptr);
    if (comm == nullptr) return;
    AbandonableThread().run([comm_abort = run_->library.comm_abort, comm] { comm_abort(comm); }, kAbortTakes);
  }

  static constexpr const char* kInit = "ncclCommInitRankConfig";

  const std::shared_ptr<Run> run_;
  const Place place_;
  std::optional<c10::Stream> stream_;  // of the thread
  TimePoint next_look_ = steady_clock::now() + kLook;

  std::timed_mutex calls_;  // of NCCL on this communicator
  std::atomic<CommHandle> comm_ = nullptr;
  std::atomic<bool> is_aborted_ = false;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Operation>> queue_, in_flight_;
  int64_t started_ = 0;
  std::optional<TimePoint> stop_at_;
  std::string reported_;  // of an operation in flight
  bool failed_ = false;
  bool over_ = false;
  friend class Communicator;
  std::thread thread_;
};

void Communicator::Calls::begin(const char* function) {
  function_ = function;
  lock_ = state_.lock_calls();
}

void Communicator::Calls::end_in_group(Result result) {
  lock_.unlock();
  state_.require(result, function_);
}

void Communicator::Calls::end(Result result) {
  end_in_group(result);
  if (result == Result::kInProgress) state_.settle(comm_, function_, deadline_);
}

class Communicator::Pending final : public Exchange::Pending {
 public:
  Pending(std::shared_ptr<State> state, std::shared_ptr<Operation> operation)
      : state_(std::move(state)), operation_(std::move(operation)) {}

  void wait(TimePoint deadline) override { state_->wait(*operation_, deadline); }
  void wait_on(const c10::Stream& stream, TimePoint deadline) override {
    state_->wait_on(*operation_, stream, deadline);
  }

 private:
  std::shared_ptr<State> state_;
  std::shared_ptr<Operation> operation_;
};

Communicator::Communicator(std::shared_ptr<Run> run, Place place)
    : state_(std::make_shared<State>(std::move(run), std::move(place))) {
  state_->thread_ = std::thread([state = state_] { state->run(); });
}

Communicator::~Communicator() { state_->stop(state_->thread_); }

const at::Device& Communicator::device() const { return state_->place().device; }

Exchange::PendingPtr Communicator::start(Launch launch) {
  return std::make_unique<Pending>(state_, state_->start(std::move(launch)));
}

}  // namespace tessera::comm::nccl
