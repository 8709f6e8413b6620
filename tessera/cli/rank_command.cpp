#include "tessera/cli/rank_command.h"

#include "tessera/launch/runners.h"

namespace tessera::cli {
namespace {

// Values stand behind "=", as one may look like an option; an empty one cannot.
std::vector<std::string> given_words(const CLI::App& command, const std::string& program) {
  std::vector<std::string> words{program, command.get_name()};
  for (const CLI::Option* const option : command.get_options()) {
    const std::string name = option->get_name();
    if (name == "--nproc") continue;
    for (const std::string& value : option->results()) {
      if (value.empty()) {
        words.insert(words.end(), {name, value});
      } else {
        words.push_back(name + "=" + value);
      }
    }
  }
  return words;
}

}  // namespace

void set_own_command(launch::LaunchRequest& request, const std::vector<std::string>& words) {
  request.program = {.name = words[0], .arguments = {words.begin() + 1, words.end()}};
  request.program_file = "/proc/self/exe";
  request.output = launch::RankOutput::kRankZeroPlain;
}

int start_as_ranks(const CLI::App& command, const std::string& program, const LaunchFlags& flags) {
  launch::LaunchRequest request = flags.made(command);
  set_own_command(request, given_words(command, program));
  return launch::run(launch::decide(request)).code;
}

}  // namespace tessera::cli
