// What the commands that write with a model have in common.
#pragma once

#include <CLI/CLI.hpp>

#include "tessera/cli/launch_flags.h"
#include "tessera/train/text_model_options.h"

namespace tessera::cli {

// Borrows both. `usual_tokens`: of --max-new-tokens, what 0 means. Of a launch there is --nproc alone: ranks of other
// hosts read nothing of this terminal, and what is started again writes its text twice.
void add_text_model_flags(CLI::App& command, train::TextModelOptions& options, LaunchFlags& flags, int usual_tokens);

}  // namespace tessera::cli
