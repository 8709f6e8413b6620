#include "tessera/nn/expert_axis.h"

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/comm/group.h"

namespace tessera::nn {

// A channel of its own, as the other axes have.
ExpertAxis::ExpertAxis(const std::shared_ptr<comm::Group>& group)
    : size_(group->size()), group_(size_ > 1 ? group->with_channel("experts") : nullptr) {}

ExpertAxis ExpertAxis::of_size(int size) {
  ExpertAxis axis;
  axis.size_ = size;
  return axis;
}

ExpertAxis ExpertAxis::asked_by(const std::string& key) const {
  ExpertAxis result = *this;
  result.key_ = key;
  return result;
}

int ExpertAxis::rank() const { return group_ ? group_->rank() : 0; }

layout::Range ExpertAxis::of_rank(int rank, int64_t experts) const {
  if (experts % size_ != 0) {
    int64_t fewer = size_, more = size_;
    while (experts % fewer != 0) --fewer;
    while (more < experts && experts % more != 0) ++more;
    throw Error(ErrorKind::kConfig, {fmt::format("{} experts do not go round {} ranks", experts, size_), key_,
                                     more <= experts ? fmt::format("use {} or {} ranks", fewer, more)
                                                     : fmt::format("use {} ranks", fewer)});
  }
  const int64_t each = experts / size_;
  return {rank * each, (rank + 1) * each};
}

}  // namespace tessera::nn
