// Starts the ranks of a plan and stays with them: passes on their output, sees each end at once, and stops the others.
//
//   kRunning --a rank fails--------------> kStopping (SIGTERM sent) --grace over------> kKilled (SIGKILL sent)
//   kRunning --SIGINT, SIGTERM, SIGHUP---> kEnding (forwarded)      --ending_time over,
//                                                                     second SIGINT---> kKilled
//   kRunning --SIGUSR1-------------------> kEnding (forwarded)      --requeue_time over-> kKilled; another signal: as
//   above kEnding  --a rank is killed by another signal than the forwarded one--> kStopping
//
// The rank to blame is the first whose end is seen; one that was ending at that moment already takes its place when it
// turns out to have been killed (a peer that loses the connection to it fails sooner than its own end is seen).
//
// What happens on another host is told over a line (node_part.h, host_line.h): to a process that stands for one, in
// place of signals, and by it; and to us, where we run for another launcher. When that line is closed or silent, the
// other side is gone: the ranks are stopped. rank_loop_hosts.cpp has what concerns other hosts.
//
// No threads: one poll() over signals, output and time. planned_ranks.h says what it promises.
#pragma once

#include <array>
#include <chrono>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "tessera/base/signals.h"
#include "tessera/launch/failure_report.h"
#include "tessera/launch/host_line.h"
#include "tessera/launch/orphan_guard.h"
#include "tessera/launch/output_lines.h"
#include "tessera/launch/output_stream.h"
#include "tessera/launch/planned_ranks.h"
#include "tessera/launch/process_plan.h"
#include "tessera/launch/rank_process.h"
#include "tessera/launch/stray_processes.h"

namespace tessera::launch {

class RankLoop {
 public:
  // `plans` are borrowed and outlive this. `programs` are the paths of what the plans' commands begin with.
  RankLoop(const Supervision& supervision, const std::vector<RankPlan>& plans, std::vector<std::string> programs);

  // Once.
  RunOutcome run();

 private:
  using Clock = std::chrono::steady_clock;
  enum class Phase { kRunning, kEnding, kStopping, kKilled };

  struct Rank {
    Rank(int rank_slot, const RankPlan& rank_plan, const std::string& program, const RankProcess::Wiring& wiring);

    // Whether the launcher of the host that it stands for has started.
    bool was_heard() const { return output_marks.found_one() || error_marks.found_one(); }

    const int slot;  // of the ranks that are started here
    const RankPlan& plan;
    RankProcess process;
    LastLines last_lines;
    OutputLines output;
    OutputLines error;
    OutputStream input;       // to a process that stands for another host
    MarkFilter output_marks;  // of such a one
    MarkFilter error_marks;
    Clock::time_point heard = Clock::now();  // when something last came from that host
    bool gone = false;                       // that host has been given up
    MemoryUse memory;
    std::optional<RankExit> exit = {};
    bool suspect = false;      // was ending already when another rank's failure was seen
    bool killed_late = false;  // was still there when SIGKILL had to be sent
  };

  void start_ranks();
  void wait_for_events();
  void pass_on_output(Rank& rank);
  bool pass_on_output_of(Rank& rank);
  bool pass_on_error_of(Rank& rank);
  void take_signals();
  void on_signal(int signal);
  void take_input();
  void lose_input(const std::string& how);
  void take_news();
  void keep_lines_alive();
  void find_silent_hosts();
  void judge_host(Rank& rank);
  void fail_host(const Rank& rank, RankFailure failure);
  void reap();
  void look_at_memory();
  void keep_time();
  void write_output();
  void finish();

  void judge(const std::vector<Rank*>& ended);
  void blame(const Rank& rank);
  RankFailure failure_of(const Rank& rank, const RankExit& exit) const;
  void stop_all();
  void kill_all();
  void abandon_all();
  void signal_all(int signal);
  void tell_all(int signal, const std::string& words);
  void say(const std::string& lines);

  int running() const;
  bool has_lines() const;
  std::string others_words() const;
  int code() const;

  OutputStream& error_stream() { return one_stream_ ? output_ : error_; }

  const Supervision supervision_;
  const std::vector<RankPlan>& plans_;
  const std::vector<std::string> programs_;
  const bool one_stream_;
  OutputStream output_;
  OutputStream error_;
  SignalInbox inbox_;
  StrayProcesses strays_;
  OrphanGuard guard_;
  std::deque<Rank> ranks_;

  Phase phase_ = Phase::kRunning;
  Clock::time_point phase_end_ = Clock::time_point::max();
  Clock::time_point start_;
  Clock::time_point next_look_;
  Clock::time_point next_beat_;
  uint64_t kills_before_ = 0;
  int forwarded_signal_ = 0;
  bool input_open_ = false;  // a line from another launcher
  bool input_lost_ = false;  // it has been closed or was silent, and the ranks were stopped for it
  Clock::time_point input_heard_;
  std::string input_;     // what has come over it of an unfinished word
  int output_error_ = 0;  // the errno after which our output goes nowhere
  std::optional<RankFailure> first_failure_ = {};
  size_t failed_plan_ = 0;
};

}  // namespace tessera::launch
