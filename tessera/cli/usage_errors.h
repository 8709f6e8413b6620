// Mistakes on the command line in the words of all other errors: what, where, and how to mend it.
#pragma once

#include <CLI/CLI.hpp>

#include "tessera/base/error.h"

namespace tessera::cli {

// Of what CLI11 refused; ErrorKind::kUsage.
Error usage_error(const CLI::App& app, const CLI::ParseError& refusal);

}  // namespace tessera::cli
