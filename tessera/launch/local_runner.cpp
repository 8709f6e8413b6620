#include "tessera/launch/local_runner.h"

#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <thread>

#include "tessera/base/env.h"
#include "tessera/base/format.h"
#include "tessera/base/log.h"
#include "tessera/launch/free_port.h"
#include "tessera/launch/process_plan.h"
#include "tessera/launch/program_path.h"
#include "tessera/launch/rank_loop.h"

namespace tessera::launch {
namespace {

// The usual place of programs where PATH is not set.
constexpr const char* kDefaultPath = "/usr/local/bin:/usr/bin:/bin";

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

int run_local(const LaunchOptions& run) {
  const Host cores_only{.cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()))};
  plan_local(run, cores_only);  // refuses a wrong run before the machine is asked for anything
  const std::string program =
      run.program.empty() ? program_path(run.command[0], env_text("PATH").value_or(kDefaultPath)) : run.program;
  if (run.master_port != 0) require_free_port(run.master_port);
  const Host host{.cores = cores_only.cores,
                  .master_port = run.master_port != 0 ? run.master_port : pick_free_port(),
                  .omp_threads_given = env_text("OMP_NUM_THREADS").has_value()};
  const std::vector<RankPlan> plans = plan_local(run, host);
  if (run.nproc > host.cores) log_info("{} share {}", count_of(run.nproc, "rank"), count_of(host.cores, "core"));
  if (!host.omp_threads_given)
    log_debug("OMP_NUM_THREADS={} for each rank", plans[0].environment.at("OMP_NUM_THREADS"));
  log_debug("the ranks meet at {}:{}", run.master_addr, host.master_port);

  open_standard_descriptors();
  const PipeSignalIgnored ignored;
  return RankLoop(run, plans, program).run();
}

}  // namespace tessera::launch
