#include "tessera/base/deadline.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/base/format.h"

namespace tessera {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

Deadline::Deadline(milliseconds allowed, std::string awaited)
    : allowed_(allowed), end_(steady_clock::now() + allowed), awaited_(std::move(awaited)) {}

bool Deadline::expired() const { return steady_clock::now() >= end_; }

milliseconds Deadline::left() const {
  return std::max(milliseconds(0), std::chrono::duration_cast<milliseconds>(end_ - steady_clock::now()));
}

void Deadline::check() const {
  if (!expired()) return;
  throw Error(ErrorKind::kPeer, {"waited " + format_duration(allowed_) + " for " + awaited_, "", ""});
}

}  // namespace tessera
