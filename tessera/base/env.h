// Reading the process environment. A variable that is set to the empty string counts as unset.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace tessera {

std::optional<std::string> env_text(const std::string& name);

// The value as a whole number; ErrorKind::kUsage naming the variable when it is set to something else.
std::optional<int64_t> env_int(const std::string& name);

// This host's name as the system has it.
std::string host_name();

}  // namespace tessera
