// The command line: parses, runs one subcommand, and tells errors. A program that adds models, tasks or monitors of its
// own has the whole of it:
//
//   int main(int argc, char** argv) {
//     tessera::models::add_model("toy", "a model of one matrix", toy_model());
//     return tessera::cli::run(argc, argv);
//   }
#pragma once

namespace tessera::cli {

// Returns the exit code.
int run(int argc, char** argv);

}  // namespace tessera::cli
