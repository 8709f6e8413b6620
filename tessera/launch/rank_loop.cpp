#include "tessera/launch/rank_loop.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/host_memory.h"
#include "tessera/launch/node_part.h"
#include "tessera/launch/process_plan.h"

namespace tessera::launch {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLookEvery{500};   // at the ranks' memory
constexpr milliseconds kKillTime{10000};  // a killed process may take to go, e.g. while it frees a device
constexpr milliseconds kStrayTime{2000};
constexpr milliseconds kLastWordsTime{1000};
constexpr size_t kReadBytes = 64 << 10;

// Whether a rank writes to the terminal itself, where it may draw a progress bar.
bool rank_draws_on(int fd, const std::vector<RankPlan>& plans) {
  return isatty(fd) == 1 && std::any_of(plans.begin(), plans.end(), [](const auto& plan) { return plan.plain_output; });
}

std::string prefix_of(const RankPlan& plan) { return plan.plain_output ? "" : plan.prefix; }

// Where bytes come from, and what is made of them; `marks`: of another host's launcher, which are taken out.
struct Source {
  UniqueFd& from;
  OutputLines& lines;
  MarkFilter* marks;
};

// One read; whether there may be more.
bool pass_on(const Source& source, bool plain, OutputStream& to) {
  if (!source.from.open()) return false;
  std::array<char, kReadBytes> bytes;
  const ssize_t count = read(source.from.get(), bytes.data(), bytes.size());
  if (count < 0) return errno == EINTR;
  if (count == 0) {
    source.from.reset();
    return false;
  }
  const std::string_view taken(bytes.data(), static_cast<size_t>(count));
  const std::string whole = source.lines.take(source.marks == nullptr ? std::string(taken) : source.marks->take(taken));
  if (plain) {
    to.append_bytes(taken);
  } else {
    to.append_lines(whole);
  }
  return true;
}

MarkFilter* marks_of(const RankPlan& plan, MarkFilter& marks) { return stands_for_host(plan) ? &marks : nullptr; }

UniqueFd open_log(const std::string& path) {
  if (path.empty()) return {};
  UniqueFd log(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (log.open()) return log;
  throw Error(ErrorKind::kMachine,
              {"cannot write a rank's output: " + errno_text(errno), path, "name a folder that you can write to"});
}

}  // namespace

RankLoop::Rank::Rank(int rank_slot, const RankPlan& rank_plan, const std::string& program,
                     const RankProcess::Wiring& wiring)
    : slot(rank_slot),
      plan(rank_plan),
      process(rank_plan, program, wiring),
      output(prefix_of(rank_plan), last_lines),
      error(prefix_of(rank_plan), last_lines),
      input(process.input().get()) {
  input.append_bytes(rank_plan.first_input);
}

RankLoop::RankLoop(const Supervision& supervision, const std::vector<RankPlan>& plans,
                   std::vector<std::string> programs)
    : supervision_(supervision),
      plans_(plans),
      programs_(std::move(programs)),
      one_stream_(same_target(STDOUT_FILENO, STDERR_FILENO)),
      output_(STDOUT_FILENO, rank_draws_on(STDOUT_FILENO, plans)),
      error_(STDERR_FILENO, rank_draws_on(STDERR_FILENO, plans)),
      inbox_({SIGINT, SIGTERM, SIGHUP, kRequeueSignal, SIGCHLD}),
      guard_(static_cast<int>(plans.size())),
      input_open_(supervision.obeys_input) {
  strays_.except(guard_.pid());
}

RunOutcome RankLoop::run() {
  start_ranks();
  reap();  // what ended meanwhile has been signalled already
  while (running() > 0) {
    wait_for_events();
    for (Rank& rank : ranks_) pass_on_output(rank);
    take_signals();
    take_input();
    take_news();
    reap();
    keep_lines_alive();
    look_at_memory();
    keep_time();
    write_output();
  }
  finish();
  RunOutcome outcome{.code = code(), .told_to_end = forwarded_signal_ != 0 || output_error_ != 0};
  if (first_failure_) {
    outcome.failure = first_failure_->exit;
    outcome.failed_plan = failed_plan_;
    outcome.lost_host = is_lost_host(*first_failure_);
  }
  return outcome;
}

void RankLoop::start_ranks() {
  start_ = Clock::now();
  next_look_ = start_;
  next_beat_ = start_;
  input_heard_ = start_;
  kills_before_ = out_of_memory_kills();
  keep_lines_alive();  // before there is anything of the ranks: whoever sees that knows that this launcher is here
  error_stream().write_some();
  for (const RankPlan& plan : plans_) {
    // A terminal is handed on itself: a progress bar looks for one, and nothing can be written past it anyway.
    const auto hands_on = [&](int fd) { return plan.inherits_output || (plan.plain_output && isatty(fd) == 1); };
    const UniqueFd log = open_log(plan.log_file);
    const size_t slot = ranks_.size();
    const RankProcess::Wiring wiring{.inherit_output = hands_on(STDOUT_FILENO),
                                     .inherit_error = hands_on(STDERR_FILENO),
                                     .log = log.get(),
                                     .guard = &guard_,
                                     .slot = static_cast<int>(slot)};
    Rank& rank = ranks_.emplace_back(static_cast<int>(slot), plan, programs_[slot], wiring);
    strays_.except(rank.process.pid());
    take_signals();
    if (phase_ != Phase::kRunning) return;  // the others need not start
  }
}

void RankLoop::wait_for_events() {
  std::vector<pollfd> awaited = {{.fd = inbox_.fd(), .events = POLLIN, .revents = 0}};
  for (Rank& rank : ranks_) {
    if (rank.process.output().open() && !output_.full()) {
      awaited.push_back({.fd = rank.process.output().get(), .events = POLLIN, .revents = 0});
    }
    if (rank.process.error().open() && !error_stream().full()) {
      awaited.push_back({.fd = rank.process.error().get(), .events = POLLIN, .revents = 0});
    }
  }
  if (input_open_) awaited.push_back({.fd = STDIN_FILENO, .events = POLLIN, .revents = 0});
  for (const Rank& rank : ranks_) {
    if (rank.process.running() && rank.input.pending()) {
      awaited.push_back({.fd = rank.input.fd(), .events = POLLOUT, .revents = 0});
    }
  }
  for (const OutputStream* stream : {&output_, &error_}) {
    if (stream->pending()) awaited.push_back({.fd = stream->fd(), .events = POLLOUT, .revents = 0});
  }
  const Clock::time_point next = std::min(phase_end_, has_lines() ? std::min(next_look_, next_beat_) : next_look_);
  const auto left = std::chrono::ceil<milliseconds>(next - Clock::now());
  poll(awaited.data(), awaited.size(), static_cast<int>(std::max(left, milliseconds(0)).count()));
}

void RankLoop::pass_on_output(Rank& rank) {
  if (!output_.full()) pass_on_output_of(rank);
  if (!error_stream().full()) pass_on_error_of(rank);
}

bool RankLoop::pass_on_output_of(Rank& rank) {
  const bool more = pass_on({rank.process.output(), rank.output, marks_of(rank.plan, rank.output_marks)},
                            rank.plan.plain_output, output_);
  if (more) rank.heard = Clock::now();
  return more;
}

bool RankLoop::pass_on_error_of(Rank& rank) {
  const bool more = pass_on({rank.process.error(), rank.error, marks_of(rank.plan, rank.error_marks)},
                            rank.plan.plain_output, error_stream());
  if (more) rank.heard = Clock::now();
  return more;
}

void RankLoop::take_signals() {
  while (const auto signal = inbox_.next()) {
    if (*signal != SIGCHLD) on_signal(*signal);
  }
}

void RankLoop::on_signal(int signal) {
  const bool cuts_short = phase_ == Phase::kEnding && forwarded_signal_ == kRequeueSignal && signal != kRequeueSignal;
  if (phase_ == Phase::kRunning || cuts_short) {
    forwarded_signal_ = signal;
    phase_ = Phase::kEnding;
    const milliseconds time = signal == kRequeueSignal ? supervision_.requeue_time : supervision_.ending_time;
    phase_end_ = Clock::now() + time;
    signal_all(signal);
    say(fmt::format("info: {}: the ranks have {} to save and exit{}\n", signal_name(signal), format_duration(time),
                    signal == SIGINT ? "; press Ctrl-C again to stop them at once" : ""));
  } else if (signal == SIGINT && phase_ != Phase::kKilled) {
    kill_all();
  }
}

void RankLoop::reap() {
  std::vector<Rank*> ended;
  for (Rank& rank : ranks_) {
    const auto exit = rank.process.poll_exit();
    if (!exit) continue;
    rank.exit = exit;
    guard_.forget(rank.slot);
    strays_.forget(rank.process.pid());
    const bool plain = rank.plan.plain_output;
    // What it wrote last is still in the pipes, at most 64 KiB each unless somebody out of reach goes on writing.
    for (int reads = 0; reads < 32 && pass_on_output_of(rank); ++reads) {
    }
    for (int reads = 0; reads < 32 && pass_on_error_of(rank); ++reads) {
    }
    rank.process.input().reset();
    rank.process.output().reset();
    rank.process.error().reset();
    const std::string output_rest = rank.output.take(rank.output_marks.finish()) + rank.output.finish();
    const std::string error_rest = rank.error.take(rank.error_marks.finish()) + rank.error.finish();
    if (!plain) {
      output_.append_lines(output_rest);
      error_stream().append_lines(error_rest);
    }
    if (stands_for_host(rank.plan)) {
      judge_host(rank);
    } else {
      ended.push_back(&rank);
    }
  }
  strays_.reap();
  judge(ended);
}

// Whether one of the ranks that have just been found ended is the first to fail.
void RankLoop::judge(const std::vector<Rank*>& ended) {
  std::vector<RankExit> exits;
  for (const Rank* rank : ended) exits.push_back(*rank->exit);
  if (phase_ == Phase::kEnding) {
    // Ranks that were told to end do so in their own way; only one that crashes meanwhile lets the others wait in vain.
    for (RankExit& exit : exits) {
      if (exit.signal == 0 || exit.signal == forwarded_signal_) exit = {};
    }
  } else if (phase_ != Phase::kRunning) {
    // The first is known, unless a rank that was ending at that moment proves to have had a cause of its own.
    for (size_t i = 0; i < ended.size(); ++i) {
      const bool worse = first_failure_ && index_to_blame(std::array{first_failure_->exit, exits[i]}) == 1;
      if (!ended[i]->suspect || !worse || phase_ == Phase::kKilled) exits[i] = {};
    }
  }
  const int worst = index_to_blame(exits);
  if (worst < 0) return;
  blame(*ended[static_cast<size_t>(worst)]);
  const bool first = phase_ == Phase::kRunning || phase_ == Phase::kEnding;
  if (!first) return;
  for (Rank& rank : ranks_) rank.suspect = rank.process.ending();
  stop_all();
}

void RankLoop::blame(const Rank& rank) {
  first_failure_ = failure_of(rank, *rank.exit);
  failed_plan_ = static_cast<size_t>(rank.slot);
  if (supervision_.obeys_input) {
    error_stream().append_aside(failed_mark({.rank = rank.plan.rank, .exit = *rank.exit}));
  }
  if (running() > 0 && phase_ != Phase::kStopping) {
    say(fmt::format("info: {} failed; stopping the others\n", failure_name(*first_failure_)));
  }
}

RankFailure RankLoop::failure_of(const Rank& rank, const RankExit& exit) const {
  const bool elsewhere = stands_for_host(rank.plan);
  std::vector<int> ended_before;
  for (const Rank& other : ranks_) {
    const bool is_well = other.exit && !other.exit->failed() && !stands_for_host(other.plan);
    if (is_well && phase_ == Phase::kRunning) ended_before.push_back(other.plan.rank);
  }
  return {.rank = rank.plan.rank,
          .name = rank.plan.name,
          .elsewhere = elsewhere,
          .was_heard = rank.was_heard(),
          .pid = rank.process.pid(),
          .exit = exit,
          .after_start = Clock::now() - start_,
          .memory = elsewhere ? MemoryUse{} : rank.memory,
          .memory_limit_bytes = host_memory().limit,
          .out_of_memory_kills = elsewhere ? 0 : out_of_memory_kills() - kills_before_,
          .ended_before = std::move(ended_before),
          .command = rank.plan.command,
          .last_lines = rank.last_lines.lines(),
          .output_not_seen = elsewhere || rank.plan.plain_output || rank.plan.inherits_output,
          .log_file = rank.plan.log_file};
}

void RankLoop::look_at_memory() {
  if (Clock::now() < next_look_) return;
  next_look_ = Clock::now() + kLookEvery;
  for (Rank& rank : ranks_) {
    if (!rank.process.running()) continue;
    const MemoryUse now = memory_use(rank.process.pid());
    if (now.resident_bytes > 0) rank.memory = now;  // 0: it is ending
  }
}

void RankLoop::keep_time() {
  if (Clock::now() < phase_end_) return;
  if (phase_ == Phase::kKilled) {
    abandon_all();
  } else {
    for (Rank& rank : ranks_) rank.killed_late = rank.process.running();
    kill_all();
  }
}

void RankLoop::write_output() {
  for (Rank& rank : ranks_) {
    if (rank.process.input().open()) rank.input.write_some();
  }
  for (OutputStream* stream : {&output_, &error_}) {
    stream->write_some();
    if (stream->error() != 0 && output_error_ == 0) {
      output_error_ = stream->error();
      if (phase_ == Phase::kRunning || phase_ == Phase::kEnding) stop_all();
    }
  }
}

void RankLoop::stop_all() {
  phase_ = Phase::kStopping;
  phase_end_ = Clock::now() + supervision_.grace;
  tell_all(SIGTERM, kStopWord);
}

void RankLoop::kill_all() {
  phase_ = Phase::kKilled;
  phase_end_ = Clock::now() + kKillTime;
  signal_all(SIGKILL);
}

void RankLoop::abandon_all() {
  for (Rank& rank : ranks_) {
    if (!rank.process.running()) continue;
    say(fmt::format("error: process {} of {} did not exit even after SIGKILL: it is stuck in the kernel\n",
                    rank.process.pid(), name_of(rank.plan)));
    rank.process.abandon();
  }
}

void RankLoop::signal_all(int signal) { tell_all(signal, word_of_signal(signal)); }

// By a signal, or by words to a process that stands for another host. SIGKILL ends the connection there, and so the
// ranks behind it.
void RankLoop::tell_all(int signal, const std::string& words) {
  for (Rank& rank : ranks_) {
    if (rank.process.input().open() && signal != SIGKILL) {
      rank.input.append_bytes(words);
      rank.input.write_some();
    } else {
      rank.process.signal(signal);
    }
  }
}

void RankLoop::say(const std::string& lines) { error_stream().append_lines(lines); }

int RankLoop::running() const {
  return static_cast<int>(
      std::count_if(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.process.running(); }));
}

std::string RankLoop::others_words() const {
  std::vector<std::string> late;
  bool named = false;
  for (const Rank& rank : ranks_) {
    if (!rank.killed_late) continue;
    named = named || !rank.plan.name.empty();
    late.push_back(named ? rank.plan.name : std::to_string(rank.plan.rank));
  }
  if (late.empty()) return "";
  return fmt::format("{}{} did not exit when asked to and had to be killed",
                     named ? "" : (late.size() == 1 ? "rank " : "ranks "), fmt::join(late, ", "));
}

// Says the outcome and lets the reader of our output take what is left, however slow it is; a Ctrl-C cuts that short.
void RankLoop::finish() {
  strays_.kill_all(kStrayTime);
  const std::string others = others_words();
  if (first_failure_) {
    say(failure_report(*first_failure_, others));
  } else if (!others.empty()) {
    say(fmt::format("error: {}\n", others));
  }
  const Clock::time_point began = Clock::now();
  while (output_.pending() || error_.pending()) {
    next_look_ = Clock::now() + kLookEvery;
    next_beat_ = next_look_;
    phase_end_ = next_look_;
    wait_for_events();
    while (const auto signal = inbox_.next()) {
      if (*signal != SIGCHLD) return;
    }
    take_input();
    if (input_lost_ && Clock::now() - began > kLastWordsTime) return;  // nobody reads any more
    write_output();
  }
}

int RankLoop::code() const {
  // Ranks that were stopped for a lost line have not done their work, however well they ended.
  const bool signal_fails = supervision_.signal_fails && forwarded_signal_ != kRequeueSignal;
  if (forwarded_signal_ != 0 && (signal_fails || input_lost_)) return 128 + forwarded_signal_;
  if (first_failure_) return exit_code_of(first_failure_->exit);
  if (output_error_ != 0) return output_error_ == EPIPE ? 128 + SIGPIPE : exit_code(ErrorKind::kMachine);
  const bool all_well =
      std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.exit && !rank.exit->failed(); });
  if (all_well) return 0;
  const bool requeued = std::any_of(ranks_.begin(), ranks_.end(),
                                    [](const Rank& rank) { return rank.exit && rank.exit->code == kRequeueCode; });
  if (forwarded_signal_ == kRequeueSignal && requeued) return kRequeueCode;
  return forwarded_signal_ != 0 ? 128 + forwarded_signal_ : 1;
}

}  // namespace tessera::launch
