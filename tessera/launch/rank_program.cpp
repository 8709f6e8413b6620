#include "tessera/launch/rank_program.h"

#include <fmt/format.h>

#include <filesystem>

#include "tessera/base/error.h"
#include "tessera/launch/program_path.h"

namespace tessera::launch {

RankProgram program_of(const std::vector<std::string>& words, const ProgramForm& form) {
  if (form.module && form.no_python) {
    throw Error(ErrorKind::kUsage, {"--module and --no_python are both given", "the command line",
                                    "keep one of them: a module needs Python"});
  }
  if (words.empty() || words.front().empty()) {
    throw Error(ErrorKind::kUsage,
                {"there is no program to launch", "", "name one: tessera launch --nproc 2 PROGRAM ARGS..."});
  }
  RankProgram program{.name = words.front(), .arguments = {words.begin() + 1, words.end()}};
  const bool any_name = !form.python.empty();
  const bool is_python = !form.no_python && (any_name || form.module || program.name.ends_with(".py"));
  program.passes_local_rank = !form.no_local_rank && (any_name || is_python);
  if (!is_python) return program;
  program.interpreter = {any_name ? form.python : program_path("python3"), "-u"};
  if (form.module) program.interpreter.emplace_back("-m");
  return program;
}

std::vector<std::string> command_of(const RankProgram& program, int local_rank) {
  std::vector<std::string> words = program.interpreter;
  words.push_back(program.name);
  if (program.passes_local_rank) words.push_back(fmt::format("--local_rank={}", local_rank));
  words.insert(words.end(), program.arguments.begin(), program.arguments.end());
  return words;
}

void require_program(const RankProgram& program) {
  if (program.interpreter.empty()) {
    program_path(program.name);
    return;
  }
  program_path(program.interpreter.front());
  if (program.interpreter.back() == "-m") return;
  std::error_code none;
  const std::filesystem::path script = program.name;
  if (std::filesystem::is_regular_file(script, none) ||
      std::filesystem::is_regular_file(script / "__main__.py", none)) {
    return;
  }
  throw Error(
      ErrorKind::kUsage,
      {fmt::format("script '{}' not found", program.name), std::filesystem::current_path(none).string(),
       "give its path relative to this folder; the launcher's options go before it, the program's own after it"});
}

}  // namespace tessera::launch
