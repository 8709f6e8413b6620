// Where the main thread of this process is, asked from another thread: for the report of a hang.
//
//   for (const std::string& frame : main_stack(1s).frames) …   // "tessera::comm::Group::wait (tessera)"
//
// A real-time signal that nobody uses is sent to the main thread; its handler notes return addresses and nothing else,
// and names are found outside of it. A system call that the thread waits in may end with EINTR. Any thread, one at a
// time.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace tessera {

struct MainStack {
  std::vector<std::string> frames;  // innermost first, "… 40 more" for the middle of a deep stack;
                                    // empty: the thread did not answer in time
  std::string script;               // where an interpreter is in its program, in its own words; may be empty
};

MainStack main_stack(std::chrono::milliseconds at_most);

// The signal, whose handler this installs at its first call; 0 where every real-time signal is in use.
int main_stack_signal();

// For an interpreter, whose own handler of that signal writes to `file` before it calls the one it found: what stands
// there is MainStack::script. The file stays open.
void set_script_stack_file(int file);

}  // namespace tessera
