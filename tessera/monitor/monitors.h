// The monitors, by the names in the run file's `monitors`. To add one: a Monitor in a file of its own, a declaration
// here and a line in monitors.cpp; in a program of one's own add_monitor().
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tessera/base/registry.h"
#include "tessera/monitor/monitor.h"

namespace tessera::monitor {

OpenRegistry<MakeMonitor>& monitors();

// ErrorKind::kConfig, with the nearest of those known, for a name that is not in the table; `where`: the run file.
void check_monitors(const std::vector<std::string>& names, const std::string& where);

// ErrorKind::kMachine where one cannot begin.
std::vector<std::unique_ptr<Monitor>> start_monitors(const std::vector<std::string>& names,
                                                     const MonitorOptions& options);

std::unique_ptr<Monitor> make_jsonl_monitor(const MonitorOptions& options);        // jsonl_monitor.cpp
std::unique_ptr<Monitor> make_csv_monitor(const MonitorOptions& options);          // scalar_monitor.cpp
std::unique_ptr<Monitor> make_tensorboard_monitor(const MonitorOptions& options);  // …

}  // namespace tessera::monitor
