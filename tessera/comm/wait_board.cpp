#include "tessera/comm/wait_board.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "tessera/base/activity.h"
#include "tessera/base/env.h"
#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/base/main_stack.h"

namespace tessera::comm {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLook{500};             // while this rank waits
constexpr milliseconds kLookElsewhere{1'000};  // … and while it does not
constexpr milliseconds kStoreTakes{5'000};     // at most, of one who asks
constexpr milliseconds kStackTakes{1'000};
constexpr milliseconds kAnswersTake{4'000};  // longer than the others' look, and their stacks
constexpr milliseconds kReportTakes = kAnswersTake + kStoreTakes;
constexpr milliseconds kCountingTakes{500};
constexpr milliseconds kReadingTakes{2'000};
constexpr milliseconds kPause{50};

const char* const kNoticed = "hang/noticed";
const char* const kConclusion = "hang/conclusion";
const char* const kRead = "hang/read";
const char* const kStoreIsGone = "the run's store, which rank 0 or its launcher serves, is gone";

std::string answer_of(int rank) { return fmt::format("hang/rank {}", rank); }

}  // namespace

// What the board shares with its thread, which a store that does not answer may hold longer than the board lives.
struct WaitBoard::Watch {
  using Clock = std::chrono::steady_clock;

  Watch(c10::intrusive_ptr<c10d::Store> connection, int own_rank) : store(std::move(connection)), rank(own_rank) {}

  void run() {
    std::unique_lock lock(mutex);
    while (!stopping) {
      const auto pause = waits.empty() ? kLookElsewhere : kLook;
      changed.wait_for(lock, pause, [this] { return stopping || look_now; });
      look_now = false;
      if (stopping || answered) continue;
      lock.unlock();
      const bool told = look();
      lock.lock();
      answered = told;
    }
    over = true;
    changed.notify_all();
  }

  // True once there is nothing more to say. Lasts as long as rank 0 is stopped, which serves the store.
  bool look() {
    try {
      if (!store->check({kNoticed})) return false;
      store->set(answer_of(rank), json_of(own_state()).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
      return true;
    } catch (const std::exception&) {  // rank 0 and its store are gone: the backend tells the waiting thread
      return false;
    }
  }

  RankState own_state() {
    RankState state{.rank = rank, .host = host_name(), .process = getpid()};
    {
      const std::lock_guard lock(mutex);
      const auto now = Clock::now();
      for (const Entry& each : waits) state.waits.push_back({each.awaited, now - each.since});
      if (last_ended) state.last = RankState::Wait{last, now - *last_ended};
    }
    const CurrentActivity activity = current_activity();
    state.activity = activity.words;
    state.busy = activity.lasted;
    MainStack stack = main_stack(kStackTakes);
    state.frames = std::move(stack.frames);
    state.script = std::move(stack.script);
    return state;
  }

  const c10::intrusive_ptr<c10d::Store> store;
  const int rank;
  std::mutex mutex;
  std::condition_variable changed;
  std::list<Entry> waits;
  Awaited last;
  std::optional<Clock::time_point> last_ended;
  bool answered = false;
  bool look_now = false;
  bool stopping = false;
  bool over = false;
};

WaitBoard::WaitBoard(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size)
    : rank_(rank), size_(size), store_(store->clone()), watch_(std::make_shared<Watch>(store->clone(), rank)) {
  store_->setTimeout(kStoreTakes);
  main_stack_signal();  // its handler is there before anybody asks
  watcher_ = std::thread([watch = watch_] { watch->run(); });
}

WaitBoard::~WaitBoard() {
  std::unique_lock lock(watch_->mutex);
  watch_->stopping = true;
  watch_->changed.notify_all();
  const bool over = watch_->changed.wait_for(lock, kLook, [this] { return watch_->over; });
  lock.unlock();
  over ? watcher_.join() : watcher_.detach();
}

WaitBoard::Waiting::Waiting(WaitBoard& board, Awaited awaited) : board_(board) {
  Watch& watch = *board_.watch_;
  const std::lock_guard lock(watch.mutex);
  entry_ = watch.waits.insert(watch.waits.end(), {std::move(awaited), Watch::Clock::now()});
}

WaitBoard::Waiting::~Waiting() {
  Watch& watch = *board_.watch_;
  const std::lock_guard lock(watch.mutex);
  watch.last = std::move(entry_->awaited);
  watch.last_ended = Watch::Clock::now();
  watch.waits.erase(entry_);
}

bool WaitBoard::hang_noticed() {
  const auto end = Watch::Clock::now() + kCountingTakes;
  try {
    while (!store_->check({kNoticed})) {
      if (Watch::Clock::now() > end) return false;
      std::this_thread::sleep_for(kPause);
    }
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

std::string WaitBoard::report_hang(const std::string& complaint) {
  try {
    const bool first = store_->add(kNoticed, 1) == 1;
    {
      const std::lock_guard lock(watch_->mutex);
      watch_->look_now = true;
    }
    watch_->changed.notify_all();
    return first ? gather(complaint) : await_conclusion();
  } catch (const Error& error) {
    return error.report().what;
  } catch (const std::exception&) {
    return kStoreIsGone;
  }
}

std::string WaitBoard::gather(const std::string& complaint) {
  const auto end = Watch::Clock::now() + kAnswersTake;
  std::vector<RankState> states;
  for (int rank = 0; rank < size_; ++rank) states.push_back({.rank = rank, .answers = false});
  std::vector<int> missing(states.size());
  for (int rank = 0; rank < size_; ++rank) missing[static_cast<size_t>(rank)] = rank;
  while (true) {
    std::erase_if(missing, [&](int rank) {
      if (!store_->check({answer_of(rank)})) return false;
      try {
        RankState said = rank_state_of(nlohmann::json::parse(store_->get_to_str(answer_of(rank))));
        if (said.rank == rank) states[static_cast<size_t>(rank)] = std::move(said);
      } catch (const nlohmann::json::exception&) {  // of another version: it has not answered
      }
      return true;
    });
    if (missing.empty() || Watch::Clock::now() > end) break;
    std::this_thread::sleep_for(kPause);
  }
  for (RankState& state : states) {
    if (!places_.empty()) state.place = places_[static_cast<size_t>(state.rank)];
  }
  const std::string conclusion = hang_conclusion(states);
  log_error("{}. What each rank waits for:\n{}", complaint, hang_report(states));
  store_->set(kConclusion, conclusion);
  see_others_off();
  return conclusion;
}

std::string WaitBoard::await_conclusion() {
  const auto end = Watch::Clock::now() + kReportTakes;
  while (!store_->check({kConclusion})) {
    if (Watch::Clock::now() > end) return "what each rank waits for could not be told";
    std::this_thread::sleep_for(kPause);
  }
  const std::string conclusion = store_->get_to_str(kConclusion);
  see_others_off();
  return conclusion;
}

void WaitBoard::see_others_off() {
  store_->add(kRead, 1);
  const auto end = Watch::Clock::now() + kReadingTakes;
  while (rank_ == 0 && store_->add(kRead, 0) < store_->add(kNoticed, 0) && Watch::Clock::now() < end) {
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace tessera::comm
