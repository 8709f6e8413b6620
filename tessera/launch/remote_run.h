// Runs the command of another launcher (remote_commands.h), and ends the ranks that it has started elsewhere when a
// signal ends it.
#pragma once

#include <string>

#include "tessera/launch/planned_ranks.h"
#include "tessera/launch/remote_commands.h"

namespace tessera::launch {

// `name`: the launcher's, in messages. Returns the command's exit code; after a signal 128 + signal.
RunOutcome run_remote(const std::string& name, const RemoteCommand& command);

}  // namespace tessera::launch
