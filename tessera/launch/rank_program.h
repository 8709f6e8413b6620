// What each rank executes: any program, or a Python script or module as DeepSpeed runs it.
//
//   ./train --x                                       a program
//   python3 -u train.py --local_rank=<k> --x          a script
//   python3 -u -m pack.train --local_rank=<k> --x     a module
#pragma once

#include <string>
#include <vector>

namespace tessera::launch {

struct RankProgram {
  std::vector<std::string> interpreter = {};  // {"python3", "-u", "-m"}; empty: `name` is a program
  std::string name = {};                      // a program, a script, or with -m a module
  std::vector<std::string> arguments = {};
  bool passes_local_rank = false;
};

struct ProgramForm {
  bool module = false;         // python -m
  bool no_python = false;      // the program itself, whatever its name
  bool no_local_rank = false;  // --local_rank is not passed
  std::string python =
      {};  // the interpreter, for any name, as `deepspeed` does. Empty: python3 of this host's PATH, by
           // its whole path, for a module and for a name that ends in .py; others get no --local_rank
};

// Of the program's name and its arguments. ErrorKind::kUsage without a name, for a module without Python, and where
// there is no python3.
RankProgram program_of(const std::vector<std::string>& words, const ProgramForm& form);

std::vector<std::string> command_of(const RankProgram& program, int local_rank);

// ErrorKind::kUsage where this host has no such program or script. A module Python finds, or says that it does not.
void require_program(const RankProgram& program);

}  // namespace tessera::launch
