#include "tessera/launch/planned_ranks.h"

#include <fcntl.h>
#include <unistd.h>

#include <csignal>

#include "tessera/launch/program_path.h"
#include "tessera/launch/rank_loop.h"

namespace tessera::launch {
namespace {

// A pipe that got the number of a closed standard descriptor would be taken for it.
void open_standard_descriptors() {
  while (true) {
    const int fd = open("/dev/null", O_RDWR);
    if (fd < 0 || fd > STDERR_FILENO) {
      if (fd >= 0) close(fd);
      return;
    }
  }
}

// While it lives, writing to a closed pipe is an error to handle and not the launcher's end.
class PipeSignalIgnored {
 public:
  PipeSignalIgnored() {
    struct sigaction ignore {};
    ignore.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &ignore, &former_);
  }
  ~PipeSignalIgnored() { sigaction(SIGPIPE, &former_, nullptr); }
  PipeSignalIgnored(const PipeSignalIgnored&) = delete;
  PipeSignalIgnored& operator=(const PipeSignalIgnored&) = delete;

 private:
  struct sigaction former_;
};

}  // namespace

RunOutcome run_planned(const std::vector<RankPlan>& plans, const Supervision& supervision, const std::string& program) {
  std::vector<std::string> programs;
  for (const RankPlan& plan : plans) {
    programs.push_back(program.empty() ? program_path(plan.command.at(0)) : program);
  }
  open_standard_descriptors();
  const PipeSignalIgnored ignored;
  return RankLoop(supervision, plans, std::move(programs)).run();
}

}  // namespace tessera::launch
