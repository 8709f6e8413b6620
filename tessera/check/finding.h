// What a check found wrong: a problem, with which no run should start, or a warning. Values.
#pragma once

#include <string>
#include <vector>

namespace tessera::check {

struct Finding {
  enum class Kind { kProblem, kWarning };
  Kind kind = Kind::kProblem;
  std::string step;  // of the check: "clocks"
  std::string what;  // names the rank and the host
  std::string fix;
};

using Findings = std::vector<Finding>;

}  // namespace tessera::check
