// The last line of a terminal, which is drawn again and again: a progress bar. Log lines (log.h) appear above it, so
// the two never share a line. On standard error; where that is no terminal, nothing is drawn. Thread-safe.
#pragma once

#include <string>

namespace tessera {

// Whether there is a terminal to draw on.
bool has_status_line();

void show_status(const std::string& text);

// Takes it away: what follows begins on an empty line.
void clear_status();

// Leaves it as an ordinary line.
void keep_status();

// While one lives, the line is not drawn, and others may write to standard error.
class StatusPause {
 public:
  StatusPause();
  ~StatusPause();
  StatusPause(const StatusPause&) = delete;
  StatusPause& operator=(const StatusPause&) = delete;
};

}  // namespace tessera
