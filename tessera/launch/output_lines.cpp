#include "tessera/launch/output_lines.h"

namespace tessera::launch {

void LastLines::add(std::string_view line, bool overwritten) {
  if (last_overwritten_) lines_.pop_back();
  last_overwritten_ = overwritten;
  lines_.emplace_back(line.substr(0, kLineBytes));
  if (line.size() > kLineBytes) lines_.back() += "...";
  if (lines_.size() > kCount) lines_.pop_front();
}

std::string OutputLines::take(std::string_view bytes) {
  std::string done;
  while (!bytes.empty()) {
    const char next = bytes.front();
    if (held_return_) {
      held_return_ = false;
      end_line(next == '\n' ? "\r\n" : "\r", done);
      if (next == '\n') bytes.remove_prefix(1);
      continue;
    }
    if (next == '\n') {
      end_line("\n", done);
      bytes.remove_prefix(1);
      continue;
    }
    if (next == '\r') {
      held_return_ = true;
      bytes.remove_prefix(1);
      continue;
    }
    if (partial_.size() == kMaxLineBytes) end_line("\n", done);
    const std::string_view run =
        bytes.substr(0, bytes.find_first_of("\r\n")).substr(0, kMaxLineBytes - partial_.size());
    partial_ += run;
    bytes.remove_prefix(run.size());
  }
  return done;
}

std::string OutputLines::finish() {
  std::string done;
  if (held_return_) end_line("\r", done);
  held_return_ = false;
  if (!partial_.empty()) end_line("\n", done);
  return done;
}

void OutputLines::end_line(std::string_view ending, std::string& done) {
  const bool overwritten = ending == "\r";
  if (overwritten && partial_.empty()) return;  // a bar's first "\r"
  if (!partial_.starts_with(prefix_)) done += prefix_;
  done += partial_;
  done += ending;
  last_lines_.add(partial_, overwritten);
  partial_.clear();
}

}  // namespace tessera::launch
