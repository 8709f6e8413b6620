// `tessera check` by the ranks of a launch, for `tessera check` and `tessera launch --check`.
#pragma once

#include <string>
#include <vector>

#include "tessera/launch/launch_request.h"

namespace tessera::cli {

// The request, whose program is left open, with the check of these files and folders as its program.
launch::LaunchRequest with_check(launch::LaunchRequest request, const std::vector<std::string>& paths,
                                 bool prints_json);

}  // namespace tessera::cli
