#include "tessera/base/status_line.h"

#include <unistd.h>

#include <cstdio>
#include <mutex>

namespace tessera {
namespace {

constexpr const char* kEmptyLine = "\r\033[K";

struct Line {
  std::recursive_mutex mutex;
  std::string text;  // empty: none is drawn
};

Line& line() {
  static Line& instance = *new Line;  // never destroyed, like the log
  return instance;
}

void draw(const std::string& text) {
  std::fprintf(stderr, "%s%s", kEmptyLine, text.c_str());
  std::fflush(stderr);
}

void forget(const char* ending) {
  const std::lock_guard lock(line().mutex);
  if (line().text.empty()) return;
  line().text.clear();
  std::fputs(ending, stderr);
  std::fflush(stderr);
}

}  // namespace

bool has_status_line() { return isatty(STDERR_FILENO) == 1; }

void show_status(const std::string& text) {
  if (!has_status_line()) return;
  const std::lock_guard lock(line().mutex);
  line().text = text;
  draw(text);
}

void clear_status() { forget(kEmptyLine); }

void keep_status() { forget("\n"); }

StatusPause::StatusPause() {
  line().mutex.lock();
  if (!line().text.empty()) draw("");
}

StatusPause::~StatusPause() {
  if (!line().text.empty()) draw(line().text);
  line().mutex.unlock();
}

}  // namespace tessera
