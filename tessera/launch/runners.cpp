#include "tessera/launch/runners.h"

#include "tessera/launch/local_runner.h"

namespace tessera::launch {

Registry<Runner> runners() {
  static constexpr Registry<Runner>::Entry kEntries[] = {
      {"local", "ranks on this host", run_local},
  };
  return {"runner", kEntries};
}

int launch(const LaunchOptions& options, const std::string& runner) {
  return runners().find(runner, "the runner").make(options);
}

}  // namespace tessera::launch
