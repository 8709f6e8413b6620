#include "tessera/launch/pid_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>

#include "tessera/base/error.h"
#include "tessera/base/unique_fd.h"

namespace tessera::launch {

PidFile::PidFile(int number) {
  if (number == 0) return;
  const std::string path = fmt::format("/tmp/{}.deepspeed", number);
  const UniqueFd file(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  const int error = errno;
  if (!file.open() && error == EEXIST) {
    throw Error(ErrorKind::kUsage, {path + " already exists", "--save_pid",
                                    fmt::format("remove it if no launcher {} is running", number)});
  }
  const std::string text = std::to_string(getpid());
  if (!file.open() || write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    throw Error(ErrorKind::kMachine, {"cannot write " + path + ": " + errno_text(error), "--save_pid",
                                      "make room there, or leave the option out"});
  }
  path_ = path;
}

PidFile::~PidFile() {
  if (!path_.empty()) unlink(path_.c_str());
}

}  // namespace tessera::launch
