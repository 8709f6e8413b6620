#include "tessera/monitor/monitors.h"

namespace tessera::monitor {

OpenRegistry<MakeMonitor>& monitors() {
  static OpenRegistry<MakeMonitor> table(
      "monitor", {
                     {"jsonl", "metrics.jsonl in the output folder", make_jsonl_monitor},
                     {"csv", "a file for each number in csv/ there", make_csv_monitor},
                     {"tensorboard", "event files in tensorboard/ there", make_tensorboard_monitor},
                 });
  return table;
}

void add_monitor(const char* name, const char* summary, MakeMonitor make) { monitors().add({name, summary, make}); }

void check_monitors(const std::vector<std::string>& names, const std::string& where) {
  for (const std::string& name : names) monitors().table().find(name, where, ErrorKind::kConfig);
}

std::vector<std::unique_ptr<Monitor>> start_monitors(const std::vector<std::string>& names,
                                                     const MonitorOptions& options) {
  check_monitors(names, "monitors");
  std::vector<std::unique_ptr<Monitor>> started;
  for (const std::string& name : names)
    started.push_back(monitors().table().find(name, "monitors", ErrorKind::kConfig).make(options));
  return started;
}

}  // namespace tessera::monitor
