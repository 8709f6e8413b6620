#include "tessera/train/rank_run.h"

#include <thread>

#include "tessera/base/error.h"
#include "tessera/base/log.h"

namespace tessera::train {

int run_as_rank(const std::function<void(const std::shared_ptr<comm::Group>& world)>& work) {
  const auto world = comm::init_distributed();
  if (world->size() == 1) {
    work(world);
    return 0;
  }
  try {
    work(world);
    return 0;
  } catch (const Error& error) {
    log_error("{}", error.what());
    if (error.kind() == ErrorKind::kPeer) std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    return exit_code(error.kind());
  }
}

}  // namespace tessera::train
