// The lines of a file, pipe or terminal, waited for no longer than one likes: who waits for somebody to type has other
// things to do meanwhile. Nothing else may read the same descriptor.
#pragma once

#include <chrono>
#include <optional>
#include <string>

namespace tessera {

class InputLines {
 public:
  // `descriptor`: borrowed.
  explicit InputLines(int descriptor) : descriptor_(descriptor) {}

  // The next line, without its end ("\n" or "\r\n"); the last need not have one. Nothing: none within that time, or
  // has_ended(). ErrorKind::kMachine where it cannot be read.
  std::optional<std::string> next(std::chrono::milliseconds at_most);

  bool has_ended() const { return has_ended_; }

 private:
  bool receive(std::chrono::milliseconds at_most);

  int descriptor_;
  std::string received_;
  bool has_ended_ = false;
};

}  // namespace tessera
