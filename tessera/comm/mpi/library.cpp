#include "tessera/comm/mpi/library.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <thread>

#include "tessera/base/env.h"
#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/base/registry.h"

namespace tessera::comm::mpi {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

// A waiting rank looks as often as it can while an answer is likely to be on its way, and then leaves its core to
// others.
constexpr milliseconds kEager{20};
constexpr microseconds kNap{100};
// Every process has come to the end by then, so nothing is on its way. MPICH 4.0 over UCX may stay in MPI_Finalize for
// good: the processes that have closed their connections sit in its last barrier and answer no other's closing
// (mended in 4.2, pmodels/mpich pull request 6596).
constexpr milliseconds kTimeToFinalize{10'000};

// What a launcher leaves in the environment of the processes that it starts.
struct Sign {
  const char* variable;
  const char* mpi;
};
constexpr Sign kSigns[] = {
    {"OMPI_COMM_WORLD_SIZE", "openmpi"},
    {"PMI_SIZE", "mpich"},     // also Slurm's --mpi=pmi2
    {"PMIX_RANK", "openmpi"},  // Slurm's --mpi=pmix
};

// With the package that brings each one's headers.
Registry<const char*> known_mpis() {
  static constexpr Registry<const char*>::Entry kEntries[] = {
      {"openmpi", "OpenMPI", "libopenmpi-dev"},
      {"mpich", "MPICH and what shares its binary interface: Intel MPI, MVAPICH", "libmpich-dev"},
  };
  return {"MPI", kEntries};
}

// Why the processes of a job may not find each other when they initialize MPI. `name`: the MPI that is loaded.
std::string fix_of_initializing(const std::string& name) {
  const bool is_openmpi = name == "openmpi";
  const std::string interface = is_openmpi ? "OMPI_MCA_btl_tcp_if_include" : "FI_TCP_IFACE, HYDRA_IFACE";
  std::string fix = fmt::format(
      "look at the other ranks' output, and that mpirun starts ranks of one program only; it has to be the mpirun of "
      "{}, as TESSERA_MPI or its variables say",
      name);
  if (env_text("SLURM_PROCID")) {
    fix += fmt::format("; under Slurm start ranks with srun --mpi={}", is_openmpi ? "pmix" : "pmi2");
  }
  return fix + fmt::format("; between hosts, name the network interface that they share ({})", interface);
}

// By its name alone: the loader looks where this program's own libraries lie (cmake/TesseraMpi.cmake). Null: dlerror().
void* open_plugin(const std::string& name) {
  return dlopen(fmt::format("libtessera_mpi_{}.so", name).c_str(), RTLD_NOW | RTLD_LOCAL);
}

const Plugin* load_plugin(const std::string& name) {
  const std::string fix =
      fmt::format("install {} and rebuild Tessera (TESSERA_WITH_MPI), or start the ranks with another MPI's mpirun",
                  known_mpis().find(name, "TESSERA_MPI").make);
  void* const object = open_plugin(name);
  if (object == nullptr) {
    throw Error(ErrorKind::kMachine, {fmt::format("there is no plugin for MPI '{}': {}", name, dlerror()),
                                      "this installation's libraries", fix});
  }
  const auto get = reinterpret_cast<decltype(&tessera_mpi_plugin)>(dlsym(object, "tessera_mpi_plugin"));
  if (get == nullptr || get()->version != kPluginVersion) {
    throw Error(ErrorKind::kMachine, {"the MPI plugin belongs to another build of Tessera", name, fix});
  }
  return get();
}

}  // namespace

std::string name_of_launcher() {
  if (const auto chosen = env_text("TESSERA_MPI")) return known_mpis().find(*chosen, "TESSERA_MPI").name;
  for (const Sign& sign : kSigns) {
    if (env_text(sign.variable)) return sign.mpi;
  }
  throw Error(ErrorKind::kUsage,
              {"the mpi backend needs ranks started by mpirun, and nothing in the environment says these were",
               "TESSERA_BACKEND=mpi",
               "use mpirun -n <ranks> tessera train run.yaml (without --nproc); with another MPI launcher, set "
               "TESSERA_MPI to openmpi or mpich"});
}

bool has_plugin_of_launcher() { return open_plugin(name_of_launcher()) != nullptr; }

std::vector<std::string> plugins_here() {
  std::vector<std::string> names;
  for (const std::string& name : known_mpis().names()) {
    void* const object = open_plugin(name);
    if (object == nullptr) continue;
    names.push_back(name);
    dlclose(object);
  }
  return names;
}

Library& Library::of_this_process(milliseconds timeout) {
  static Library* const library = new Library(name_of_launcher());  // the end of the process still needs it
  library->begin(timeout);
  library->require_usable();
  return *library;
}

Library::Library(const std::string& name) : name_(name), plugin_(load_plugin(name)), process_(getpid()) {}

void Library::begin(milliseconds timeout) {
  const std::lock_guard lock(begin_mutex_);
  if (has_begun_) return;
  timeout_ = timeout;
  job_ = call_in_time<Job>("initialize", [plugin = plugin_](Job* job) { return plugin->begin(job); });
  has_begun_ = true;
  if (job_.is_over) return;
  if (!job_.serves_any_thread) {
    throw Error(ErrorKind::kMachine, {"MPI serves only the thread that initialized it", name_,
                                      "initialize it with MPI_THREAD_SERIALIZED or higher, or leave that to Tessera"});
  }
  // Beside atexit this knows the exit code. What was registered earlier, so the libraries' own ends, comes later.
  if (job_.is_initialized_here) on_exit(end_of_process, this);
}

void Library::require_usable() const {
  const bool is_fork = process_ != getpid();
  if (!is_fork && !job_.is_over && main_thread_.is_lost()) {
    throw Error(ErrorKind::kPeer, {"MPI still waits for other processes in a call that was given up", name_,
                                   "look at the error before this one"});
  }
  if (!is_fork && !job_.is_over) return;
  throw Error(ErrorKind::kUsage, {is_fork ? "MPI belongs to the process that this one was forked from"
                                          : "MPI has been finalized in this process",
                                  "the mpi backend", "use it earlier, in the process that mpirun started"});
}

template <class Call>
void Library::call(const char* what, const Call& call_plugin) {
  const std::lock_guard lock(mutex_);
  require_usable();
  check(call_plugin(), what);
}

// The result outlives the wait for it, because MPI may still write to it.
template <class Result, class Call>
Result Library::call_in_time(const char* what, const Call& call_plugin) {
  const std::lock_guard lock(mutex_);
  require_usable();
  const auto result = std::make_shared<Result>();
  const auto code = main_thread_.run([result, call_plugin] { return call_plugin(result.get()); }, timeout_);
  if (!code) {
    throw Error(ErrorKind::kPeer,
                {fmt::format("MPI could not {} within {:.2f} s: not every process of the job has come to it", what,
                             static_cast<double>(timeout_.count()) / 1e3),
                 name_, fix_of_initializing(name_)});
  }
  check(*code, what);
  return *result;
}

void Library::check(int code, const char* what) const {
  if (code == 0) return;
  char text[512] = "";
  plugin_->explain(code, text, sizeof(text));
  throw Error(ErrorKind::kPeer, {fmt::format("MPI could not {}: {}", what, text), name_, "look at mpirun's output"});
}

Group Library::make_group(const std::vector<int>& ranks_of_job) {
  return call_in_time<Group>("make a communicator", [plugin = plugin_, ranks = ranks_of_job](Group* group) {
    return plugin->make_group(ranks.data(), static_cast<int>(ranks.size()), group);
  });
}

void Library::free_group(Group group) {
  call("free a communicator", [&] { return plugin_->free_group(group); });
}

bool Library::is_one_host(Group group) {
  return call_in_time<bool>("find the ranks of this host",
                            [plugin = plugin_, group](bool* one_host) { return plugin->is_one_host(group, one_host); });
}

Request Library::start_send(std::span<const std::byte> data, const Route& route) {
  Request request = 0;
  call("send", [&] {
    return plugin_->start_send(data.data(), static_cast<int>(data.size()), route.peer, route.tag, route.group,
                               &request);
  });
  return request;
}

Request Library::start_receive(std::span<std::byte> data, const Route& route) {
  Request request = 0;
  call("receive", [&] {
    return plugin_->start_receive(data.data(), static_cast<int>(data.size()), route.peer, route.tag, route.group,
                                  &request);
  });
  return request;
}

std::optional<int> Library::test(Request& request) {
  bool done = false;
  int bytes = 0;
  call("end a message", [&] { return plugin_->test(&request, &done, &bytes); });
  return done ? std::optional(bytes) : std::nullopt;
}

int Library::wait(Request& request, const Deadline& deadline) {
  const auto begin = steady_clock::now();
  while (true) {
    if (const auto bytes = test(request)) return *bytes;
    deadline.check();
    if (steady_clock::now() - begin < kEager) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(kNap);
    }
  }
}

void Library::cancel(Request request) {
  call("cancel", [&] { return plugin_->cancel(&request); });
}

void Library::end_of_process(int status, void* library) {
  auto* const self = static_cast<Library*>(library);
  if (status == 0 && self->process_ == getpid()) self->say_goodbye();
}

void Library::say_goodbye() {
  try {
    Request all_here = 0;
    call("start the final barrier", [&] { return plugin_->start_goodbye(&all_here); });
    wait(all_here, Deadline(timeout_, "the other ranks to exit"));
    const std::lock_guard lock(mutex_);
    require_usable();
    const milliseconds at_most = std::min(timeout_, kTimeToFinalize);
    const auto code = main_thread_.run([plugin = plugin_] { return plugin->finalize(); }, at_most);
    if (!code) leave_without_finalizing(at_most);
    check(*code, "finalize");
    job_.is_over = true;  // for threads that still run
  } catch (const Error& error) {
    log_warning("MPI was not finalized: {}", error.report().what);
  }
}

// At once: a thread is still inside MPI, which the ends of its libraries would take apart.
void Library::leave_without_finalizing(milliseconds waited) {
  log_warning(
      "MPI_Finalize did not come back within {:.2f} s although every rank had come to it: this rank ends without it. "
      "All of its work is done",
      static_cast<double>(waited.count()) / 1e3);
  std::cout.flush();
  std::fflush(nullptr);
  _exit(EXIT_SUCCESS);
}

}  // namespace tessera::comm::mpi
