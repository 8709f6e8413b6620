// Reading the process environment. A variable that is set to the empty string counts as unset.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

namespace tessera {

std::optional<std::string> env_text(const std::string& name);

// One of `allowed`; ErrorKind::kUsage naming the variable when it is set to something else.
std::optional<std::string> env_choice(const std::string& name, std::initializer_list<std::string_view> allowed);

// The value as a whole number; ErrorKind::kUsage naming the variable when it is set to something else.
std::optional<int64_t> env_int(const std::string& name);

// This host's name as the system has it.
std::string host_name();

}  // namespace tessera
