// Which of this process's variables ranks on other hosts get: by prefix, and those of the file .deepspeed_env.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "tessera/launch/environment.h"

namespace tessera::launch {

// Variables in the order in which they stand on command lines.
using Exports = std::vector<std::pair<std::string, std::string>>;

// Sets one: in its place where it is there already.
void set_export(Exports& exports, const std::string& name, const std::string& value);

// "NAME=value" each; blanks around both go, and empty lines. `file`: what errors call it. ErrorKind::kUsage, with the
// line, for one without '='.
Exports parse_environment_file(const std::vector<std::string>& lines, const std::string& file);

// The file's variables; `name` is looked up in the home folder, then here, as DeepSpeed does. None where there is none.
Exports read_environment_file(const std::string& name);

// The name of that file: .deepspeed_env, or what DS_ENV_FILE says.
std::string environment_file_name();

// The prefixes of names that are exported: MLFLOW, PYTHON, MV2, UCX, TESSERA_.
const std::vector<std::string>& exported_prefixes();

// Of `environment`, what has such a prefix or one of `more`. In a job with AISC_JOB_NAME, without NCCL_IB_HCA and
// UCX_NET_DEVICES, which differ from host to host. Neither TESSERA_SECRET nor TESSERA_HOST is ever among them.
Exports exported_variables(const Environment& environment, const std::vector<std::string>& more);

// Refuses (ErrorKind::kUsage) a TESSERA_SECRET that would have to go on other hosts' command lines to reach the ranks.
void require_no_open_secret(const Environment& environment);

// PYTHONPATH with `folder` before it, where Python looks for modules of the folder in which the run was started.
std::string python_path_with(const std::string& folder, const Environment& environment);

// This process's environment.
Environment own_environment();

}  // namespace tessera::launch
