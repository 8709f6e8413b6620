// Collects what is wrong with a file so that one error can say it all.
//
//   problems.add("'stage' is 4", place, "use 0, 1, 2 or 3");
//   problems.raise();      // throws nothing, that one problem, or the list in the order of the file
#pragma once

#include <string>
#include <vector>

#include "tessera/config/where.h"

namespace tessera::config {

struct Problem {
  std::string what;
  Place place;
  std::string fix;
};

class Problems {
 public:
  void add(std::string what, Place place, std::string fix) {
    problems_.push_back({std::move(what), std::move(place), std::move(fix)});
  }
  bool empty() const { return problems_.empty(); }

  // Throws ErrorKind::kConfig if there is any problem.
  void raise();

 private:
  std::vector<Problem> problems_;
};

}  // namespace tessera::config
