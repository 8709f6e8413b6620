// What a command needs that starts itself as the ranks of a run: train, generate and chat.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "tessera/cli/launch_flags.h"

namespace tessera::cli {

// Has the request's ranks run this program by these words, of which the first is its name as the user called it. Rank 0
// writes as if it ran alone.
void set_own_command(launch::LaunchRequest& request, const std::vector<std::string>& words);

// Starts the command line that was given, without --nproc, as so many ranks of this host, and returns the exit code.
// For a command whose only option of a launch is --nproc. `program`: as the user called it.
int start_as_ranks(const CLI::App& command, const std::string& program, const LaunchFlags& flags);

}  // namespace tessera::cli
