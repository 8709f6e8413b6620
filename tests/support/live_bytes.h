// Counts the bytes that LibTorch's CPU allocator has given out on this thread, exactly.
//
//   const auto bytes = std::make_shared<LiveBytes>();
//   const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, bytes);
#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>

namespace tessera::test {

class LiveBytes : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
    live += bytes;
    peak = std::max(peak, live);
  }
  bool memoryProfilingEnabled() const override { return true; }

  int64_t live = 0;
  int64_t peak = 0;
};

}  // namespace tessera::test
