#include "tessera/launch/rank_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tessera/base/error.h"

namespace tessera::launch {
namespace {

struct Pipe {
  UniqueFd read_end;
  UniqueFd write_end;
};

Pipe make_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    throw Error(ErrorKind::kMachine,
                {"cannot create a pipe for a rank: " + errno_text(errno), "", "raise 'ulimit -n' or use fewer ranks"});
  }
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> inherited_environment() {
  std::vector<std::string> entries;
  for (char** entry = environ; *entry != nullptr; ++entry) entries.emplace_back(*entry);
  return entries;
}

// What the child needs between fork and exec, made before: there it may call only what is async-signal-safe.
struct ChildStart {
  const char* program;
  char** arguments;
  char** environment;
  int input;  // -1 each: ours stays
  int output;
  int error;
  int failure;  // where to write errno when the program does not run
  pid_t launcher;
  OrphanGuard* guard;
  int slot;
  sigset_t mask;
};

[[noreturn]] void run_child(const ChildStart& start) {
  setsid();
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != start.launcher) _exit(127);                           // it died before prctl could tell
  if (start.guard != nullptr) start.guard->watch(start.slot, getpid());  // before it can start anything
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD, SIGPIPE}) {
    struct sigaction action;
    sigaction(signal, nullptr, &action);
    // Handlers are the launcher's. What it ignores itself (nohup) stays ignored, but SIGPIPE it ignores for its own
    // sake.
    if (action.sa_handler == SIG_IGN && signal != SIGPIPE) continue;
    action = {};
    action.sa_handler = SIG_DFL;
    sigaction(signal, &action, nullptr);
  }
  if (start.input >= 0) dup2(start.input, STDIN_FILENO);
  if (start.output >= 0) dup2(start.output, STDOUT_FILENO);
  if (start.error >= 0) dup2(start.error, STDERR_FILENO);
  sigprocmask(SIG_SETMASK, &start.mask, nullptr);
  execve(start.program, start.arguments, start.environment);
  const int error = errno;
  [[maybe_unused]] const ssize_t written = write(start.failure, &error, sizeof error);
  _exit(127);
}

// The child's errno when it could not execute its program; 0 when it did.
int wait_for_exec(int failure) {
  int error = 0;
  ssize_t count = 0;
  do {
    count = read(failure, &error, sizeof error);
  } while (count < 0 && errno == EINTR);
  return count == sizeof error ? error : 0;
}

}  // namespace

RankProcess::RankProcess(const RankPlan& plan, const std::string& program, const Wiring& wiring) {
  const bool logs = wiring.log >= 0;
  Pipe output = wiring.inherit_output || logs ? Pipe{} : make_pipe();
  Pipe error = wiring.inherit_error || logs ? Pipe{} : make_pipe();
  Pipe failure = make_pipe();
  Pipe input = plan.first_input.empty() ? Pipe{} : make_pipe();
  if (!plan.inherits_input && plan.first_input.empty()) {
    input.read_end = UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC));
  }
  std::vector<std::string> arguments = plan.command;
  std::vector<std::string> environment = merge_environment(inherited_environment(), plan.environment);
  std::vector<char*> argument_pointers = pointers_to(arguments);
  std::vector<char*> environment_pointers = pointers_to(environment);
  ChildStart start{.program = program.c_str(),
                   .arguments = argument_pointers.data(),
                   .environment = environment_pointers.data(),
                   .input = input.read_end.get(),
                   .output = logs ? wiring.log : output.write_end.get(),
                   .error = logs ? wiring.log : error.write_end.get(),
                   .failure = failure.write_end.get(),
                   .launcher = getpid(),
                   .guard = wiring.guard,
                   .slot = wiring.slot,
                   .mask = {}};
  // Until the child has its own handlers a signal would write into the launcher's inbox, which both share.
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &start.mask);
  pid_ = fork();
  const int fork_error = errno;
  if (pid_ == 0) run_child(start);
  pthread_sigmask(SIG_SETMASK, &start.mask, nullptr);
  if (pid_ < 0) {
    throw Error(ErrorKind::kMachine,
                {fmt::format("cannot start a process for rank {}: {}", plan.rank, errno_text(fork_error)), "",
                 "raise 'ulimit -u' or use fewer ranks"});
  }
  running_ = true;
  failure.write_end.reset();
  if (const int exec_error = wait_for_exec(failure.read_end.get())) {
    if (wiring.guard != nullptr) wiring.guard->forget(wiring.slot);
    waitpid(pid_, nullptr, 0);
    throw Error(ErrorKind::kUsage,
                {fmt::format("'{}' cannot be run: {}", program, errno_text(exec_error)), "",
                 exec_error == ENOEXEC  ? "a script's first line must name its interpreter: '#!/bin/sh'"
                 : exec_error == ENOENT ? "the interpreter named in its first line does not exist"
                                        : "check the file and its arguments"});
  }
  input_ = std::move(input.write_end);
  output_ = std::move(output.read_end);
  error_ = std::move(error.read_end);
  for (const UniqueFd* end : {&input_, &output_, &error_}) {
    if (end->open()) fcntl(end->get(), F_SETFL, O_NONBLOCK);
  }
}

RankProcess::~RankProcess() {
  if (!running_) return;
  kill(-pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void RankProcess::signal(int signal) {
  if (!running_) return;
  kill(-pid_, signal);
  if (signal == SIGTERM) kill(-pid_, SIGCONT);  // a stopped process would not see it
}

bool RankProcess::ending() const {
  constexpr unsigned kExiting = 0x4;  // PF_EXITING of the kernel's task flags, as proc(5) shows them
  if (!running_) return false;
  std::ifstream file(fmt::format("/proc/{}/stat", pid_));
  std::string line;
  std::getline(file, line);
  std::istringstream fields(line.substr(std::min(line.size(), line.rfind(')') + 1)));  // the name may hold anything
  char state = 0;
  int parent = 0, group = 0, session = 0, terminal = 0, foreground = 0;
  unsigned flags = 0;
  return fields >> state >> parent >> group >> session >> terminal >> foreground >> flags && (flags & kExiting) != 0;
}

std::optional<RankExit> RankProcess::poll_exit() {
  if (!running_) return std::nullopt;
  siginfo_t info{};
  if (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) {
    return std::nullopt;
  }
  // Before it is reaped: until then nobody else can get its number, nor that of its group.
  kill(-pid_, SIGKILL);
  int status = 0;
  waitpid(pid_, &status, 0);
  running_ = false;
  return rank_exit_of(status);
}

}  // namespace tessera::launch
