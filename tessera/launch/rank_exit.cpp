#include "tessera/launch/rank_exit.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <csignal>
#include <cstring>

#include "tessera/base/signals.h"

namespace tessera::launch {
namespace {

struct SignalMeaning {
  int signal;
  const char* words;
  const char* fix = "";
};

constexpr SignalMeaning kMeanings[] = {
    {SIGKILL, "sent by the system when memory runs out, by a scheduler or by a person",
     "where memory ran out, use a smaller micro batch or fewer ranks on this host, or add memory. Killed at the start, "
     "it asked for more than there is at once: 'tessera estimate' says how much a run needs; what is offloaded to the "
     "CPU counts, so offload to NVMe (docs/troubleshooting.md)"},
    {SIGSEGV, "an access to memory it does not own"},
    {SIGBUS, "an access to memory with nothing behind it: a mapped file was truncated, or /dev/shm is full",
     "look at the room in /dev/shm (df /dev/shm; a container has 64 MB unless it was started with --shm-size), and "
     "whether a file of the model or of the data is being written or was cut; 'tessera env' warns of both"},
    {SIGABRT, "it aborted itself: an uncaught exception or a failed assertion, see its last lines"},
    {SIGILL, "an instruction this processor does not support",
     "a program or library was built for a newer processor (-march=native): build it on the oldest host of the run, or "
     "take PyTorch's own wheels; 'tessera env' shows what this processor has"},
    {SIGFPE, "an integer division by zero"},
    {SIGTERM, "it was asked to stop"},
    {SIGINT, "it was interrupted"},
    {SIGHUP, "its terminal was closed"},
    {SIGPIPE, "it wrote to a pipe or connection closed at the other end"},
    {SIGXCPU, "it used up its CPU time (ulimit -t)"},
    {SIGXFSZ, "a file grew beyond ulimit -f"},
    {SIGSYS, "a system call this machine forbids"},
};

std::string signal_words(int signal, bool memory_ran_out) {
  if (signal == SIGKILL && memory_ran_out) return "SIGKILL, probably out of memory";
  for (const SignalMeaning& meaning : kMeanings) {
    if (meaning.signal == signal) return fmt::format("{}, {}", signal_name(signal), meaning.words);
  }
  return signal_name(signal);
}

// The signal that killed a command below the rank, when the rank is a shell that says so by its code; else 0.
int signal_told_by(int code) { return code > 128 && sigabbrev_np(code - 128) != nullptr ? code - 128 : 0; }

int signal_that_ended(const RankExit& exit) { return exit.signal != 0 ? exit.signal : signal_told_by(exit.code); }

int blame(const RankExit& exit) {
  if (!exit.failed()) return 0;
  switch (exit.signal) {
    case 0:
    case SIGABRT:
    case SIGPIPE:
    case SIGTERM:
    case SIGINT:
    case SIGHUP:
      return 1;
    default:
      return 2;
  }
}

}  // namespace

RankExit rank_exit_of(int wait_status) {
  if (!WIFSIGNALED(wait_status)) return {.code = WEXITSTATUS(wait_status)};
  return {.signal = WTERMSIG(wait_status), .core_dumped = WCOREDUMP(wait_status) != 0};
}

int exit_code_of(const RankExit& exit) { return exit.signal != 0 ? 128 + exit.signal : exit.code; }

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name == nullptr ? fmt::format("signal {}", signal) : fmt::format("SIG{}", name);
}

std::string exit_words(const RankExit& exit, bool memory_ran_out) {
  if (exit.signal != 0) {
    return fmt::format("was killed by {}{}", signal_words(exit.signal, memory_ran_out),
                       exit.core_dumped ? " (core dumped)" : "");
  }
  if (exit.code == 0) return "ended with code 0";
  if (exit.code == kRequeueCode) return fmt::format("exited with code {}: it asks to go on later", kRequeueCode);
  if (exit.code == 126) return "exited with code 126: its shell could not execute a command";
  if (exit.code == 127)
    return "exited with code 127: its shell could not find a command, or the loader a shared library";
  if (const int signal = signal_told_by(exit.code)) {
    return fmt::format("exited with code {}: a command it ran was killed by {}", exit.code,
                       signal_words(signal, memory_ran_out));
  }
  return fmt::format("exited with code {}", exit.code);
}

std::string fix_of_signal(const RankExit& exit) {
  for (const SignalMeaning& meaning : kMeanings) {
    if (meaning.signal == signal_that_ended(exit)) return meaning.fix;
  }
  return "";
}

bool was_killed_outright(const RankExit& exit) { return signal_that_ended(exit) == SIGKILL; }

int index_to_blame(std::span<const RankExit> exits) {
  int worst = -1;
  for (int i = 0; i < static_cast<int>(exits.size()); ++i) {
    if (blame(exits[i]) > (worst < 0 ? 0 : blame(exits[worst]))) worst = i;
  }
  return worst;
}

}  // namespace tessera::launch
