// What the thread that trains is doing, in a few words: an event of the timeline (trace.h), and what the report of a
// hang says of a rank that waits for nobody. Costs a few atomic stores. Of one thread at a time; read by any.
//
//   const Activity activity("next batches");
#pragma once

#include <chrono>
#include <string>

#include "tessera/base/trace.h"

namespace tessera {

class Activity {
 public:
  // `words` outlives the process.
  explicit Activity(const char* words);
  ~Activity();
  Activity(const Activity&) = delete;
  Activity& operator=(const Activity&) = delete;

 private:
  TraceSpan span_;
  const char* outer_;
  std::chrono::steady_clock::time_point outer_since_;
};

struct CurrentActivity {
  std::string words;  // empty: none is named
  std::chrono::duration<double> lasted;
};

CurrentActivity current_activity();

}  // namespace tessera
