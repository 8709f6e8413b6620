// One started rank: its process, the pipes of its output, and its end.
//
// The process leads a session and group of its own, so that a Ctrl-C on the terminal does not reach it past the
// launcher and one call signals all that it started; the kernel kills it when the thread that started it ends. Whatever
// is left of its group is killed when it ends or when this object does. Not movable; one thread.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "tessera/base/unique_fd.h"
#include "tessera/launch/orphan_guard.h"
#include "tessera/launch/process_plan.h"
#include "tessera/launch/rank_exit.h"

namespace tessera::launch {

class RankProcess {
 public:
  struct Wiring {
    bool inherit_output = false;  // standard output is ours; else a pipe to output()
    bool inherit_error = false;
    int log = -1;                  // open file that takes both instead
    OrphanGuard* guard = nullptr;  // watches the process before its program runs; borrowed during the call
    int slot = 0;                  // by which the guard knows it
  };

  // Returns once the program runs. ErrorKind::kUsage when `program` cannot be executed, ErrorKind::kMachine when no
  // process or pipe is available.
  RankProcess(const RankPlan& plan, const std::string& program, const Wiring& wiring);
  ~RankProcess();
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;

  pid_t pid() const { return pid_; }
  bool running() const { return running_; }

  // The writing end of its standard input, which does not block; open where the plan has a first_input.
  UniqueFd& input() { return input_; }

  // The reading ends, which do not block; not open where the rank inherits ours.
  UniqueFd& output() { return output_; }
  UniqueFd& error() { return error_; }

  // To every process of its group; no effect once it has ended.
  void signal(int signal);

  // How it ended, once: when it is found to have ended since the last call. Never waits.
  std::optional<RankExit> poll_exit();

  // Whether it is on its way out: the kernel has begun to take it down but cannot yet tell how it ended. Its
  // connections may be closed already, so that its peers fail before its own end is seen; with a device to release,
  // long before.
  bool ending() const;

  // Leaves a process behind that even SIGKILL does not end (it hangs in the kernel).
  void abandon() { running_ = false; }

 private:
  pid_t pid_ = -1;
  bool running_ = false;
  UniqueFd input_;
  UniqueFd output_;
  UniqueFd error_;
};

}  // namespace tessera::launch
