// What a program says when a part of it is not on the machine, told apart from its other last words: a shared library
// that the loader does not find, a version that a library does not have, a module that Python does not find. Text only.
#pragma once

#include <deque>
#include <optional>
#include <string>

namespace tessera::launch {

struct MissingPart {
  std::string what;  // "it did not find the shared library libcudart.so.12"
  std::string fix;   // "load CUDA's module (module load cuda) …"
};

// Of the last lines of a process that failed; nothing where they speak of no such thing.
std::optional<MissingPart> missing_part(const std::deque<std::string>& last_lines);

}  // namespace tessera::launch
