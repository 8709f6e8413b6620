// What the commands that write with a model have in common.
#pragma once

#include <CLI/CLI.hpp>

#include "tessera/train/text_model_options.h"

namespace tessera::cli {

// Borrows the options. `usual_tokens`: of --max-new-tokens, what 0 means.
void add_text_model_flags(CLI::App& command, train::TextModelOptions& options, int usual_tokens);

}  // namespace tessera::cli
