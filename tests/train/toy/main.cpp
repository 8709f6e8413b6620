// The program `tessera` with parts of its own, for test_parts_of_ones_own.py.
#include "tests/train/toy/parts.h"

int main(int argc, char** argv) {
  tessera::models::add_model("toy-table", "a row for each token", tessera::toy::table_model());
  tessera::train::add_task("copy", "say every token again", tessera::toy::copy_task());
  tessera::monitor::add_monitor("tally", "a loss a line", tessera::toy::make_tally);
  return tessera::cli::run(argc, argv);
}
