// The program `tessera`, and the only place where a process of ours decides to exit.
#include <cstdio>
#include <cstdlib>

#include "tessera/cli/run.h"

int main(int argc, char** argv) {
  const int code = tessera::cli::run(argc, argv);
  if (code == 0) return 0;
  // What libraries do at the end of a process may want the memory or the threads that there were too few of.
  std::fflush(nullptr);
  std::_Exit(code);
}
