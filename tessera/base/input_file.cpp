#include "tessera/base/input_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <sstream>

#include "tessera/base/format.h"
#include "tessera/base/unique_fd.h"

namespace tessera {
namespace {

const char* name_of_type(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

struct Opened {
  UniqueFd fd;
  uint64_t bytes = 0;
};

Opened open_file(const std::filesystem::path& path, ErrorKind kind) {
  const auto refuse = [&](const std::string& what) { throw Error(kind, {what, path.string(), "check the path"}); };
  Opened file{UniqueFd(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)), 0};
  struct stat found = {};
  if (!file.fd.open() || fstat(file.fd.get(), &found) != 0) {
    refuse("the file cannot be read: " + errno_text(errno));
  }
  if (!S_ISREG(found.st_mode)) refuse(fmt::format("this is {}, not a file", name_of_type(found.st_mode)));
  file.bytes = static_cast<uint64_t>(found.st_size);
  return file;
}

}  // namespace

void require_input_file(const std::filesystem::path& path, ErrorKind kind) { open_file(path, kind); }

std::string read_input_file(const std::filesystem::path& path, ErrorKind kind, uint64_t at_most) {
  const Opened file = open_file(path, kind);
  if (file.bytes > at_most) {
    throw Error(kind, {fmt::format("the file has {}, but a file of this kind has at most {}", format_bytes(file.bytes),
                                   format_bytes(at_most)),
                       path.string(), "check the path"});
  }
  std::string text(file.bytes, '\0');
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t got = read(file.fd.get(), text.data() + done, text.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw Error(kind, {"the file cannot be read: " + errno_text(errno), path.string(), "check the drive"});
    if (got == 0) break;  // it has become shorter
    done += static_cast<size_t>(got);
  }
  text.resize(done);
  return text;
}

std::vector<std::string> read_input_lines(const std::filesystem::path& path, ErrorKind kind) {
  std::istringstream text(read_input_file(path, kind));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

std::ifstream open_input_file(const std::filesystem::path& path, ErrorKind kind) {
  require_input_file(path, kind);
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error(kind, {"the file cannot be opened: " + errno_text(errno), path.string(), "check the path"});
  return file;
}

void require_read_whole(const std::ifstream& file, const std::filesystem::path& path, ErrorKind kind) {
  if (!file.bad()) return;
  throw Error(kind, {"the file cannot be read: " + errno_text(errno), path.string(), "check the drive"});
}

}  // namespace tessera
