#include "tessera/zero/gather_order.h"

#include <algorithm>

namespace tessera::zero {

void GatherOrder::gathered(size_t unit) {
  current_.push_back(unit);
  const auto here = recorded_.begin() + static_cast<std::ptrdiff_t>(position_);
  const auto found = std::find(here, recorded_.end(), unit);
  if (found != recorded_.end()) position_ = static_cast<size_t>(found - recorded_.begin()) + 1;
}

void GatherOrder::end_pass() {
  recorded_ = std::move(current_);
  current_.clear();
  position_ = 0;
}

}  // namespace tessera::zero
