// What of a RankLoop concerns other hosts: the line from a launcher there, and those to the launchers of other hosts.
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>

#include "tessera/launch/host_line.h"
#include "tessera/launch/node_part.h"
#include "tessera/launch/rank_loop.h"

namespace tessera::launch {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr RankExit kLost{.code = 255};  // as ssh ends where there is no connection

// Once the run ends, a host that lives has something to say: it is not waited for as long as one that may only be slow.
constexpr milliseconds kSilenceAtTheEnd{4000};

}  // namespace

bool RankLoop::has_lines() const {
  return supervision_.obeys_input || std::any_of(plans_.begin(), plans_.end(), stands_for_host);
}

void RankLoop::take_input() {
  pollfd readable{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  if (!input_open_) return;
  if (poll(&readable, 1, 0) <= 0) {
    const auto silent = Clock::now() - input_heard_;
    if (supervision_.silence.count() > 0 && silent > supervision_.silence) {
      lose_input(fmt::format("has not been heard of for {} s", std::chrono::floor<seconds>(silent).count()));
    }
    return;
  }
  std::array<char, 256> bytes;
  const ssize_t count = read(STDIN_FILENO, bytes.data(), bytes.size());
  if (count < 0 && errno == EINTR) return;
  if (count <= 0) {
    lose_input("is gone");
    return;
  }
  input_heard_ = Clock::now();
  input_.append(bytes.data(), static_cast<size_t>(count));
  for (size_t end = input_.find('\n'); end != std::string::npos; end = input_.find('\n')) {
    const std::string word = input_.substr(0, end);
    input_.erase(0, end + 1);
    if (const int signal = signal_of_word(word)) {
      on_signal(signal);
    } else if (word + "\n" != kBeatWord && (phase_ == Phase::kRunning || phase_ == Phase::kEnding)) {
      stop_all();  // another host's rank has failed
    }
  }
}

void RankLoop::lose_input(const std::string& how) {
  input_open_ = false;
  input_lost_ = true;
  if (phase_ != Phase::kRunning && phase_ != Phase::kEnding) return;
  forwarded_signal_ = SIGHUP;
  say(fmt::format("info: the launcher that started these ranks {}; stopping them\n", how));
  stop_all();
}

// Which ranks have failed on other hosts.
void RankLoop::take_news() {
  for (Rank& rank : ranks_) {
    for (MarkFilter* marks : {&rank.output_marks, &rank.error_marks}) {
      while (const auto told = marks->next_failure()) {
        RankFailure failure = failure_of(rank, told->exit);
        failure.rank_there = told->rank;
        fail_host(rank, std::move(failure));
      }
    }
  }
}

void RankLoop::keep_lines_alive() {
  if (!has_lines() || Clock::now() < next_beat_) return;
  next_beat_ = Clock::now() + kBeatEvery;
  // What does not go out is not followed by more of it.
  if (supervision_.obeys_input && !error_stream().pending()) error_stream().append_aside(alive_mark());
  for (Rank& rank : ranks_) {
    if (rank.process.input().open() && !rank.input.pending()) rank.input.append_bytes(kBeatWord);
  }
  if (supervision_.silence.count() > 0) find_silent_hosts();
}

void RankLoop::find_silent_hosts() {
  if (phase_ == Phase::kKilled) return;
  const bool ends = phase_ != Phase::kRunning && phase_ != Phase::kEnding;
  std::vector<Rank*> silent;
  int quiet = 0;  // of other hosts than this: silent, or about to be
  int heard = 0;
  for (Rank& rank : ranks_) {
    if (!stands_for_host(rank.plan) || !rank.process.running() || rank.gone) continue;
    // While nobody reads our output, we do not read theirs.
    if (output_.full() || error_stream().full()) rank.heard = Clock::now();
    milliseconds allowed = std::max<milliseconds>(kStartTime, supervision_.silence);
    if (rank.was_heard()) allowed = ends ? std::min(supervision_.silence, kSilenceAtTheEnd) : supervision_.silence;
    const auto silence = Clock::now() - rank.heard;
    if (silence > allowed) silent.push_back(&rank);
    // Their signs of life come at different moments: where the network of this host is down, one is silent first.
    const milliseconds nearly = std::max(allowed - 2 * kBeatEvery, allowed / 2);
    if (!rank.plan.is_here) ++(silence > nearly ? quiet : heard);
  }
  for (Rank* rank : silent) {
    RankFailure failure = failure_of(*rank, kLost);
    failure.silent_for = std::max(seconds(1), std::chrono::floor<seconds>(Clock::now() - rank->heard));
    failure.all_are_silent = quiet > 1 && heard == 0;
    rank->gone = true;
    fail_host(*rank, std::move(failure));
    rank->process.signal(SIGKILL);  // an ssh, which would wait longer
  }
}

// One whose ssh has ended.
void RankLoop::judge_host(Rank& rank) {
  if (rank.gone || !rank.exit->failed()) return;
  RankFailure failure = failure_of(rank, *rank.exit);
  const bool runs = phase_ == Phase::kRunning;
  // Ranks that were told to end do so in their own way; a connection does not end by itself.
  if (runs || (phase_ != Phase::kKilled && is_lost_host(failure))) fail_host(rank, std::move(failure));
}

void RankLoop::fail_host(const Rank& rank, RankFailure failure) {
  if (first_failure_ && !goes_before(failure, *first_failure_)) return;
  first_failure_ = std::move(failure);
  failed_plan_ = static_cast<size_t>(rank.slot);
  if (phase_ != Phase::kRunning && phase_ != Phase::kEnding) return;
  if (running() > 0) say(fmt::format("info: {} failed; stopping the others\n", failure_name(*first_failure_)));
  stop_all();
}

}  // namespace tessera::launch
