#include "tessera/cli/check_command.h"

#include "tessera/cli/rank_command.h"

namespace tessera::cli {

launch::LaunchRequest with_check(launch::LaunchRequest request, const std::vector<std::string>& paths,
                                 bool prints_json) {
  std::vector<std::string> words{"tessera", "check"};
  if (prints_json) words.emplace_back("--json");
  words.emplace_back("--");
  words.insert(words.end(), paths.begin(), paths.end());
  set_own_command(request, words);
  return request;
}

}  // namespace tessera::cli
