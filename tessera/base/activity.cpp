#include "tessera/base/activity.h"

#include <atomic>

namespace tessera {
namespace {

using std::chrono::steady_clock;

std::atomic<const char*> now = nullptr;
std::atomic<steady_clock::time_point> since{};

}  // namespace

Activity::Activity(const char* words)
    : span_(TraceLane::kCompute, words),
      outer_(now.exchange(words)),
      outer_since_(since.exchange(steady_clock::now())) {}

Activity::~Activity() {
  now = outer_;
  since = outer_since_;
}

CurrentActivity current_activity() {
  const char* const words = now;
  if (words == nullptr) return {"", {}};
  return {words, steady_clock::now() - since.load()};
}

}  // namespace tessera
