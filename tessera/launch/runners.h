// How ranks can be started. To add a runner: a function in a file of its own, a declaration and a line in runners.cpp.
//
// A runner starts the ranks, passes on their output and signals, stops the others when one fails and says which, and
// returns the exit code to use once all have ended. local_runner.h says it in full.
#pragma once

#include <string>

#include "tessera/base/registry.h"
#include "tessera/launch/launch_options.h"

namespace tessera::launch {

using Runner = int (*)(const LaunchOptions& options);
Registry<Runner> runners();

// By the runner of that name; ErrorKind::kUsage where there is none.
int launch(const LaunchOptions& options, const std::string& runner = "local");

}  // namespace tessera::launch
