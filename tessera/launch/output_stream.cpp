#include "tessera/launch/output_stream.h"

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>

namespace tessera::launch {
namespace {

// As much of `bytes` as is written at one go. O_NONBLOCK would be shared with whoever else has our terminal open, so
// the descriptor stays as it is: after POLLOUT a pipe takes PIPE_BUF bytes without waiting, and takes them in one
// piece.
std::string_view next_piece(std::string_view bytes) {
  const std::string_view piece = bytes.substr(0, PIPE_BUF);
  const size_t line_end = piece.rfind('\n');
  return line_end == std::string_view::npos ? piece : piece.substr(0, line_end + 1);
}

}  // namespace

void OutputStream::append_lines(std::string_view lines) {
  if (lines.empty()) return;
  if (!at_line_start_) append_bytes("\n");
  if (shares_terminal_) append_bytes("\r\033[K");
  append_bytes(lines);
}

void OutputStream::append_bytes(std::string_view bytes) {
  if (error_ != 0 || bytes.empty()) return;
  queue_ += bytes;
  at_line_start_ = bytes.back() == '\n' || bytes.back() == '\r';
}

void OutputStream::append_aside(std::string_view bytes) {
  if (error_ == 0) queue_ += bytes;
}

void OutputStream::write_some() {
  while (pending() && error_ == 0) {
    pollfd room{.fd = fd_, .events = POLLOUT, .revents = 0};
    if (poll(&room, 1, 0) <= 0) break;
    const std::string_view piece = next_piece(std::string_view(queue_).substr(written_));
    const ssize_t count = write(fd_, piece.data(), piece.size());
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) break;
    if (count < 0) {
      error_ = errno;
      queue_.clear();
      written_ = 0;
      return;
    }
    written_ += static_cast<size_t>(count);
  }
  if (written_ == queue_.size() || written_ > kFullBytes / 4) {
    queue_.erase(0, written_);
    written_ = 0;
  }
}

bool same_target(int fd, int other_fd) {
  struct stat one;
  struct stat other;
  return fstat(fd, &one) == 0 && fstat(other_fd, &other) == 0 && one.st_dev == other.st_dev &&
         one.st_ino == other.st_ino;
}

}  // namespace tessera::launch
