// Ranks of which each holds some of a layer's experts (expert parallelism; Lepikhin et al. 2020, "GShard", arXiv
// 2006.16668). They read different samples: an expert's tokens come to it from all of them (nn/expert_dispatch.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "tessera/layout/range.h"

namespace tessera::comm {
class Group;
}

namespace tessera::nn {

class ExpertAxis {
 public:
  ExpertAxis() = default;  // of one rank
  explicit ExpertAxis(const std::shared_ptr<comm::Group>& group);

  // For arithmetic alone: a network over it can be counted, but not run.
  static ExpertAxis of_size(int size);

  // The same, asked for by this key of a configuration: where errors of sizes are.
  ExpertAxis asked_by(const std::string& key) const;

  int rank() const;
  int size() const { return size_; }
  const std::shared_ptr<comm::Group>& group() const { return group_; }  // null: one rank

  // Of so many experts, those of a rank, and this one's. ErrorKind::kConfig, with the nearest sizes that do, where they
  // do not divide.
  layout::Range of_rank(int rank, int64_t experts) const;
  layout::Range own(int64_t experts) const { return of_rank(rank(), experts); }

 private:
  int size_ = 1;
  std::string key_ = "parallel.expert";
  std::shared_ptr<comm::Group> group_;
};

}  // namespace tessera::nn
