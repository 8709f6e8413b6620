// A model, a task and a monitor that Tessera does not have: one file each, and one line each in main.cpp.
#pragma once

#include "tessera/tessera.h"

namespace tessera::toy {

models::ModelType table_model();
train::TaskType copy_task();
std::unique_ptr<monitor::Monitor> make_tally(const monitor::MonitorOptions& options);

}  // namespace tessera::toy
