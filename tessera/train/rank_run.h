// A command that several ranks run together, or one process alone.
#pragma once

#include <functional>
#include <memory>

#include "tessera/comm/group.h"

namespace tessera::train {

// Joins the run of the environment (comm::init_distributed), does `work` in its world, and returns the exit code.
// Alone, errors are the caller's; of a rank among several they are told here, and one that lost its peer lets that one
// end first, so that whoever watches the ranks blames the right one.
int run_as_rank(const std::function<void(const std::shared_ptr<comm::Group>& world)>& work);

}  // namespace tessera::train
