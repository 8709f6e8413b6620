// What has to be the same on every rank, compared before anything depends on it: ranks that differ would otherwise wait
// for each other until a time-out, or train something that nobody asked for.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tessera/comm/group.h"

namespace tessera::comm {

struct SharedFacts {
  std::string subject;  // "configuration"
  std::string text;     // a fact a line: "zero_optimization.stage = 3"
  std::string fix;
};

// Collective. Where ranks differ: ErrorKind::kUsage on every rank, with the first rank that has other facts than rank
// 0, and the first of them. Moves a hash; the texts only where it differs. `where`: for the error.
void require_agreement(Group& group, const std::vector<SharedFacts>& facts, const std::string& where);

// Collective. Runs `work` on this rank; where it failed on any, every rank throws the first such rank's error. `label`:
// what it is, for other ranks' waits.
void all_or_none(Group& group, const std::string& label, const std::function<void()>& work);

}  // namespace tessera::comm
