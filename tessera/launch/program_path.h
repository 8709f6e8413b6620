// Finding the program to launch as a shell would.
#pragma once

#include <string>

namespace tessera::launch {

// The path of the file to execute: `name` itself when it has a slash, else the first executable file of that name in
// the directories of `search_path` (PATH's form). ErrorKind::kUsage, with what to write instead where that is known.
std::string program_path(const std::string& name, const std::string& search_path);

// … in PATH, or where programs usually are if it is not set.
std::string program_path(const std::string& name);

// Whether PATH has a program of that name.
bool program_exists(const std::string& name);

}  // namespace tessera::launch
