#include "tests/launch/started_tool.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <thread>

#include "tessera/base/deadline.h"
#include "tests/support/built_places.h"

namespace tessera::launch {
namespace {

// One read; false at the end.
bool take(int& fd, std::string& into) {
  char bytes[65536];
  const ssize_t count = read(fd, bytes, sizeof bytes);
  if (count > 0) {
    into.append(bytes, static_cast<size_t>(count));
    return true;
  }
  close(fd);
  fd = -1;
  return false;
}

int count_of(const std::string& text, const std::string& in) {
  int count = 0;
  for (size_t at = in.find(text); at != std::string::npos; at = in.find(text, at + 1)) ++count;
  return count;
}

bool gone(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  if (!std::getline(file, line)) return true;
  const size_t state = line.rfind(')') + 2;
  return state < line.size() && (line[state] == 'Z' || line[state] == 'X');
}

}  // namespace

StartedTool::StartedTool(const std::vector<std::string>& arguments,
                         const std::map<std::string, std::string>& environment) {
  int out[2];
  int err[2];
  if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
  pid_ = fork();
  if (pid_ == 0) {
    dup2(out[1], STDOUT_FILENO);
    dup2(err[1], STDERR_FILENO);
    dup2(open("/dev/null", O_RDONLY), STDIN_FILENO);
    for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
    std::vector<std::string> texts = arguments;
    texts.insert(texts.begin(), test::launch_tool());
    std::vector<char*> pointers;
    for (std::string& text : texts) pointers.push_back(text.data());
    pointers.push_back(nullptr);
    execv(pointers.front(), pointers.data());
    _exit(127);
  }
  close(out[1]);
  close(err[1]);
  out_fd_ = out[0];
  err_fd_ = err[0];
}

StartedTool::~StartedTool() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);  // the guard ends its ranks
    waitpid(pid_, nullptr, 0);
  }
  if (out_fd_ >= 0) close(out_fd_);
  if (err_fd_ >= 0) close(err_fd_);
}

void StartedTool::read_for(milliseconds time) {
  pollfd both[2] = {{.fd = out_fd_, .events = POLLIN, .revents = 0}, {.fd = err_fd_, .events = POLLIN, .revents = 0}};
  if (poll(both, 2, static_cast<int>(time.count())) <= 0) return;
  if (both[0].revents != 0) take(out_fd_, out_);
  if (both[1].revents != 0) take(err_fd_, err_);
}

bool StartedTool::printed(const std::string& text, int times, milliseconds allowed) {
  const Deadline deadline(allowed, text);
  while (count_of(text, out_) < times) {
    if (deadline.expired()) return false;
    read_for(std::min(deadline.left(), milliseconds(100)));
  }
  return true;
}

int StartedTool::wait(milliseconds allowed) {
  const Deadline deadline(allowed, "launch_tool");
  int status = 0;
  while (waitpid(pid_, &status, WNOHANG) == 0) {
    if (deadline.expired()) return -1;
    read_for(std::min(deadline.left(), milliseconds(20)));
  }
  pid_ = -1;
  // Nothing that still runs may hold the pipes: this would wait for it until the deadline.
  while ((out_fd_ >= 0 || err_fd_ >= 0) && !deadline.expired()) read_for(deadline.left());
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

std::vector<pid_t> StartedTool::pids_after(const std::string& label) const {
  std::vector<pid_t> pids;
  for (size_t at = out_.find(label); at != std::string::npos; at = out_.find(label, at + 1)) {
    pids.push_back(std::atoi(out_.c_str() + at + label.size()));
  }
  return pids;
}

void StartedTool::close_output() {
  if (out_fd_ >= 0) close(out_fd_);
  out_fd_ = -1;
}

bool all_gone(const std::vector<pid_t>& pids, milliseconds allowed) {
  const Deadline deadline(allowed, "processes to go");
  while (!std::all_of(pids.begin(), pids.end(), gone)) {
    if (deadline.expired()) return false;
    std::this_thread::sleep_for(milliseconds(10));
  }
  return true;
}

}  // namespace tessera::launch
