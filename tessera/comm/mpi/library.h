// The MPI library of the mpirun that started this process. There is one per process, as MPI requires: loaded and
// initialized when it is first asked for, and never unloaded. After a fork it belongs to the parent alone.
//
// MPI makes progress only inside calls, and each call advances whatever is in flight, so ranks that wait keep polling.
// Any thread may call; calls are made one at a time. What MPI reports is thrown as an Error.
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

class Library {
 public:
  // ErrorKind::kUsage: not started by mpirun, or a fork. ErrorKind::kMachine: there is no plugin for that MPI.
  static Library& of_this_process();

  const Job& job() const { return job_; }

  // Collective.
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

  // How long this process, when it ends, waits for the others.
  void set_goodbye(std::chrono::milliseconds timeout) { goodbye_ = timeout; }

 private:
  explicit Library(const std::string& name);
  void require_usable() const;
  static void end_of_process(int status, void* library);
  void say_goodbye();
  template <class Call>
  void call(const char* what, const Call& call_plugin);

  std::string name_;
  const Plugin* plugin_;
  Job job_{};
  int process_;
  std::chrono::milliseconds goodbye_{0};
  std::mutex mutex_;
};

}  // namespace tessera::comm::mpi
