// Everything that can be known about ranks before hours are spent: do they run the same versions, on hosts that have
// what a run needs, with the same files and the same time; do collectives compute what they should; how fast is each
// link. Each step ends within the run's time-out, with an error that names who did not come.
#pragma once

#include <string>
#include <vector>

namespace tessera::check {

// Collective; the ranks find each other through the environment. Rank 0 prints what was found, as text or as JSON, on
// standard output. `paths`: files and folders that every host should have, the same on every rank. Returns the exit
// code: 1 where something was found that would stop a run.
int check_as_rank(const std::vector<std::string>& paths, bool prints_json);

}  // namespace tessera::check
