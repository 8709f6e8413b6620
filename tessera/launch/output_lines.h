// A rank's output, cut into lines: "[rank 1] " before each, and the last of them kept for the report of a failure.
//
//   OutputLines lines("[rank 1] ", last_lines);
//   print(lines.take("step 1\nst"));    // "[rank 1] step 1\n"
//   print(lines.take("ep 2"));          // ""
//   print(lines.finish());              // "[rank 1] step 2\n"
//
// A line ends with "\n", "\r\n", or "\r" (a progress bar: the next line overwrites it), and keeps that ending. One
// longer than kMaxLineBytes is cut there, so memory stays bounded whatever a rank writes.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <string_view>

namespace tessera::launch {

// The last kCount lines of a rank, of standard output and error together in the order of their arrival.
class LastLines {
 public:
  static constexpr size_t kCount = 20;
  static constexpr size_t kLineBytes = 1000;  // of each; the rest is left out

  // `overwritten`: ended by a lone "\r", so that the next line takes its place.
  void add(std::string_view line, bool overwritten);
  const std::deque<std::string>& lines() const { return lines_; }

 private:
  std::deque<std::string> lines_;
  bool last_overwritten_ = false;
};

class OutputLines {
 public:
  static constexpr size_t kMaxLineBytes = 64 << 10;

  // `last_lines` is borrowed and outlives this. A line that begins with the prefix already does not get it twice.
  OutputLines(std::string prefix, LastLines& last_lines) : prefix_(std::move(prefix)), last_lines_(last_lines) {}

  // The whole lines that `bytes` complete, each with its prefix and its ending.
  std::string take(std::string_view bytes);

  // What is left as a line, ended by "\n".
  std::string finish();

 private:
  void end_line(std::string_view ending, std::string& done);

  std::string prefix_;
  LastLines& last_lines_;
  std::string partial_;
  bool held_return_ = false;  // partial_ was followed by "\r", and it is not known yet whether "\n" follows
};

}  // namespace tessera::launch
