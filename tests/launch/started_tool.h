// launch_tool as a child process whose output and end a test can await. Every wait has a deadline, after which the
// process and its ranks are killed and the test fails.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <string>
#include <vector>

namespace tessera::launch {

using std::chrono::milliseconds;
using std::chrono::seconds;

class StartedTool {
 public:
  // `environment` is set over ours.
  explicit StartedTool(const std::vector<std::string>& arguments,
                       const std::map<std::string, std::string>& environment = {});
  ~StartedTool();
  StartedTool(const StartedTool&) = delete;
  StartedTool& operator=(const StartedTool&) = delete;

  pid_t pid() const { return pid_; }
  const std::string& out() const { return out_; }
  const std::string& err() const { return err_; }

  // Whether `text` has appeared `times` times in standard output within `allowed`.
  bool printed(const std::string& text, int times = 1, milliseconds allowed = seconds(20));

  // Its exit code, 128 + signal when one killed it; -1 after `allowed`. All its output has been read then.
  int wait(milliseconds allowed = seconds(30));

  // The numbers after `label` in standard output: pids that the ranks have printed.
  std::vector<pid_t> pids_after(const std::string& label) const;

  // Stops reading, as `head` does when it has enough.
  void close_output();

 private:
  void read_for(milliseconds time);

  pid_t pid_ = -1;
  int out_fd_ = -1;
  int err_fd_ = -1;
  std::string out_;
  std::string err_;
};

// Whether none of the processes is there any more (zombies count as gone) within `allowed`.
bool all_gone(const std::vector<pid_t>& pids, milliseconds allowed);

}  // namespace tessera::launch
