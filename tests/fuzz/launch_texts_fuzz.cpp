// What a launcher reads: a hostfile, filters, world info, .deepspeed_env, a list of cores, Slurm's lists, and the line
// to another host's part. The first byte says which.
#include <sstream>
#include <string>
#include <vector>

#include "tessera/base/shell.h"
#include "tessera/base/slurm_lists.h"
#include "tessera/launch/core_binding.h"
#include "tessera/launch/exported_environment.h"
#include "tessera/launch/host_filter.h"
#include "tessera/launch/hostfile.h"
#include "tessera/launch/node_part.h"
#include "tessera/launch/world_info.h"
#include "tests/fuzz/target.h"

namespace tessera::fuzz::launch_texts_fuzz {

TESSERA_FUZZ_TARGET(launch_texts) {
  if (bytes.empty()) return;
  const std::string text(bytes.substr(1));
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  switch (bytes[0]) {
    case 'h':
      launch::parse_hostfile(lines, "hosts");
      break;
    case 'f':
      launch::filter_hosts({{"a", {0, 1}}, {"b", {0}}}, {.include = text});
      break;
    case 'w':
      launch::decode_world_info(text);
      break;
    case 'e':
      launch::parse_environment_file(lines, "env");
      break;
    case 'c':
      launch::parse_core_list(text);
      break;
    case 'n':
      slurm_hosts(text, "NODES");
      break;
    case 't':
      slurm_counts(text, "TASKS");
      break;
    case 's':
      shell_words(text, "here");
      break;
    default:
      launch::parse_node_part(text);
  }
}

}  // namespace tessera::fuzz::launch_texts_fuzz
