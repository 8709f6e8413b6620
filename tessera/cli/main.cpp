// The program `tessera`, and the only place where a process of ours decides to exit.
#include "tessera/cli/run.h"

int main(int argc, char** argv) { return tessera::cli::run(argc, argv); }
