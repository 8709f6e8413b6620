// DeepSpeed's --save_pid: a file by which others find the launcher, /tmp/<number>.deepspeed, for as long as this lives.
#pragma once

#include <string>

namespace tessera::launch {

class PidFile {
 public:
  // Holds this process's ID. `number`: that of the launcher which was called, on every host; 0: no file.
  // ErrorKind::kUsage where there is one already, ErrorKind::kMachine where it cannot be written.
  explicit PidFile(int number);
  ~PidFile();
  PidFile(const PidFile&) = delete;
  PidFile& operator=(const PidFile&) = delete;

 private:
  std::string path_;
};

}  // namespace tessera::launch
