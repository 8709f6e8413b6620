// The program `tessera` with parts of its own, for test_parts_of_ones_own.py.
#include "tessera/cli/run.h"
#include "tests/train/toy/parts.h"

int main(int argc, char** argv) {
  tessera::models::models().add({"toy-table", "a row for each token", tessera::toy::table_model()});
  tessera::train::tasks().add({"copy", "say every token again", tessera::toy::copy_task()});
  tessera::monitor::monitors().add({"tally", "a loss a line", tessera::toy::make_tally});
  return tessera::cli::run(argc, argv);
}
