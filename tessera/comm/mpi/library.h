// The MPI library of the mpirun that started this process. There is one per process, as MPI requires: loaded and
// initialized when it is first asked for, and never unloaded. After a fork it belongs to the parent alone.
//
// MPI makes progress only inside calls, and each call advances whatever is in flight, so ranks that wait keep polling.
// Any thread may call; calls are made one at a time. What MPI reports is thrown as an Error, and so is a call in which
// the other processes did not come in time (main_thread.h); nothing can be asked of MPI after that.
//
// A process that ends well (exit code 0) says goodbye to all others and then finalizes MPI. After any other end, or
// when the others do not come, it does not: finalizing waits without limit for peers that may be gone or wait for this
// rank. mpirun treats a process that ends this way as failed, and ends the others.
#pragma once

#include <chrono>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tessera/base/deadline.h"
#include "tessera/comm/mpi/main_thread.h"
#include "tessera/comm/mpi/plugin.h"

namespace tessera::comm::mpi {

// Between whom, and under which tag, a message goes.
struct Route {
  Group group;
  int peer;
  int tag;
};

// The MPI by whose launcher this process was started, "openmpi" or "mpich", as TESSERA_MPI or the launcher's variables
// say. ErrorKind::kUsage: there is no sign of a launcher.
std::string name_of_launcher();

// Whether that MPI's plugin is there.
bool has_plugin_of_launcher();

// The MPIs whose plugin can be loaded here, whoever started this process: "openmpi", "mpich".
std::vector<std::string> plugins_here();

class Library {
 public:
  // Initializes MPI at its first call, for which every process of the job has to come within `timeout`.
  // ErrorKind::kUsage: not started by mpirun, or a fork. ErrorKind::kMachine: there is no plugin for that MPI.
  // ErrorKind::kPeer: the others did not come.
  static Library& of_this_process(std::chrono::milliseconds timeout);

  const Job& job() const { return job_; }

  // Collective, and within the time-out of of_this_process().
  Group make_group(const std::vector<int>& ranks_of_job);
  bool is_one_host(Group group);

  void free_group(Group group);

  // At most INT_MAX bytes; they are borrowed until the request is done.
  Request start_send(std::span<const std::byte> data, const Route& route);
  Request start_receive(std::span<std::byte> data, const Route& route);

  // One look: the bytes that the message had, once it is done, and the request no more.
  std::optional<int> test(Request& request);

  // Looks until it is done or the deadline has passed.
  int wait(Request& request, const Deadline& deadline);

  // Nobody wants a receive any longer: it is done at the next test unless something has come for it.
  void cancel(Request request);

 private:
  explicit Library(const std::string& name);
  void begin(std::chrono::milliseconds timeout);
  void require_usable() const;
  static void end_of_process(int status, void* library);
  void say_goodbye();
  [[noreturn]] static void leave_without_finalizing(std::chrono::milliseconds waited);
  template <class Call>
  void call(const char* what, const Call& call_plugin);
  template <class Result, class Call>
  Result call_in_time(const char* what, const Call& call_plugin);
  void check(int code, const char* what) const;

  std::string name_;
  const Plugin* plugin_;
  Job job_{};
  std::mutex begin_mutex_;
  bool has_begun_ = false;
  int process_;
  std::chrono::milliseconds timeout_{0};  // for the others, in calls that wait for them and at the end
  MainThread main_thread_;
  std::mutex mutex_;
};

}  // namespace tessera::comm::mpi
