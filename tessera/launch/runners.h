// A launch from its options: which hosts, which ranks, by which launcher; then to run it, or to say what would run.
//
//   const Launch launch = decide(request);
//   return dry_run ? print(launch_text(launch)) : run(launch).code;
//
// Launchers: "local" (run_node here), "ssh" (ssh_runner.h), and those of other programs (remote_commands.h). Where the
// request names none, it is "local" on one host that is this one, and "ssh" otherwise. A hostfile is read only where it
// is named: DeepSpeed's /job/hostfile is the `deepspeed` launcher's default alone.
#pragma once

#include <string>
#include <vector>

#include "tessera/launch/hostfile.h"
#include "tessera/launch/launch_request.h"
#include "tessera/launch/planned_ranks.h"

namespace tessera::launch {

inline constexpr const char* kSlurmLauncher = "slurm";

struct Launch {
  LaunchRequest request = {};
  std::vector<HostSlots> pool = {};   // what the hostfile names, or this host
  std::vector<HostSlots> hosts = {};  // what was chosen of it
  std::string launcher = {};
};

// Refuses (ErrorKind::kUsage) everything that can be without asking another host. Starts nothing.
Launch decide(const LaunchRequest& request);

std::string launch_text(const Launch& launch);

// Returns once all ranks have ended; planned_ranks.h says it in full.
RunOutcome run(const Launch& launch);

// "local", "ssh", "pdsh", …
std::vector<std::string> launcher_names();

}  // namespace tessera::launch
