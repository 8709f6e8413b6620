#include "tessera/launch/program_path.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <sstream>

#include "tessera/base/env.h"
#include "tessera/base/error.h"

namespace tessera::launch {
namespace {

// 0 when `path` is a file that may be executed; else the errno that execve would give.
int execute_error(const std::string& path) {
  struct stat status;
  if (stat(path.c_str(), &status) != 0) return errno;
  if (!S_ISREG(status.st_mode)) return EACCES;
  return access(path.c_str(), X_OK) == 0 ? 0 : errno;
}

std::string default_search_path() { return env_text("PATH").value_or("/usr/local/bin:/usr/bin:/bin"); }

struct Search {
  std::string found;
  std::string locked;  // the first of that name that may not be executed
};

Search search(const std::string& name, const std::string& search_path) {
  Search result;
  std::istringstream directories(search_path);
  for (std::string directory; result.found.empty() && std::getline(directories, directory, ':');) {
    const std::string path = (directory.empty() ? "." : directory) + "/" + name;
    const int error = execute_error(path);
    if (error == 0) result.found = path;
    if (error == EACCES && result.locked.empty()) result.locked = path;
  }
  return result;
}

std::string how_to_run(const std::string& path, int error) {
  if (path.ends_with(".py")) return fmt::format("launch 'python3 {}'", path);
  if (path.ends_with(".sh")) return fmt::format("launch 'sh {}'", path);
  struct stat status;
  if (stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) return "it is a directory: name a program in it";
  return error == EACCES ? fmt::format("make it executable: chmod +x {}", path) : "check the path";
}

}  // namespace

std::string program_path(const std::string& name, const std::string& search_path) {
  if (name.find('/') != std::string::npos) {
    if (const int error = execute_error(name)) {
      throw Error(ErrorKind::kUsage,
                  {fmt::format("'{}' cannot be run: {}", name, errno_text(error)), "", how_to_run(name, error)});
    }
    return name;
  }
  const auto [found, locked] = search(name, search_path);
  if (!found.empty()) return found;
  if (!locked.empty()) {
    throw Error(ErrorKind::kUsage, {fmt::format("'{}' cannot be run: {}", locked, errno_text(EACCES)), "PATH",
                                    how_to_run(locked, EACCES)});
  }
  std::string fix = "check the spelling, or give its path";
  struct stat status;
  if (stat(name.c_str(), &status) == 0) {
    fix = execute_error(name) == 0 ? fmt::format("use './{}' for the one in this directory", name)
                                   : how_to_run(name, execute_error(name));
  }
  throw Error(ErrorKind::kUsage, {fmt::format("program '{}' not found", name), "PATH", fix});
}

std::string program_path(const std::string& name) { return program_path(name, default_search_path()); }

bool program_exists(const std::string& name) { return !search(name, default_search_path()).found.empty(); }

}  // namespace tessera::launch
