// Writes to our own standard output or error without ever waiting for its reader: bytes queue here until poll() says
// that there is room. Lines appended whole stay whole. One thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tessera::launch {

class OutputStream {
 public:
  static constexpr size_t kFullBytes = 1 << 20;

  // `shares_terminal`: another process may leave an unfinished line (a progress bar) on the terminal that `fd` is;
  // appended lines then begin by clearing it.
  explicit OutputStream(int fd, bool shares_terminal = false) : fd_(fd), shares_terminal_(shares_terminal) {}

  int fd() const { return fd_; }

  // Lines that end with "\n" or "\r". When append_bytes left the stream in the middle of a line, that line is ended
  // first.
  void append_lines(std::string_view lines);

  // Bytes as they are.
  void append_bytes(std::string_view bytes);

  // Bytes that the reader takes out again: lines go on as if they were not there.
  void append_aside(std::string_view bytes);

  bool pending() const { return written_ < queue_.size(); }

  // The queue is long: read no more from the ranks until it is shorter, so that they wait for the reader as usual.
  bool full() const { return queue_.size() - written_ > kFullBytes; }

  // Writes what can be written without waiting.
  void write_some();

  // The errno that ended all writing (EPIPE: the reader is gone); 0 while it works. What is appended then is dropped.
  int error() const { return error_; }

 private:
  int fd_;
  bool shares_terminal_;
  int error_ = 0;
  std::string queue_;
  size_t written_ = 0;
  bool at_line_start_ = true;
};

// Whether both are the same terminal, pipe or file, as after 2>&1: then one stream must serve both.
bool same_target(int fd, int other_fd);

}  // namespace tessera::launch
