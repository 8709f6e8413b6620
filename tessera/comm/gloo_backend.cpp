// gloo as LibTorch carries it. This is the one file that sees gloo's own headers: the wheel lacks them, Debian's
// libgloo-dev has them, and only pointers to their types pass through, so nothing of that package is linked.
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "tessera/base/env.h"
#include "tessera/base/error.h"
#include "tessera/comm/backends.h"
#include "tessera/comm/message_exchange.h"

namespace tessera::comm {
namespace {

// The address that peers will connect to: GLOO_SOCKET_IFNAME if set, loopback for a run on one host, else the host's
// own.
std::shared_ptr<::gloo::transport::Device> make_device(const World& world) {
  if (const auto interface = env_text("GLOO_SOCKET_IFNAME")) {
    return c10d::ProcessGroupGloo::createDeviceForInterface(*interface);
  }
  const bool one_host = world.master_addr.starts_with("127.") || world.master_addr == "localhost";
  if (one_host) return c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1");
  return c10d::ProcessGroupGloo::createDefaultDevice();
}

}  // namespace

std::unique_ptr<Exchange> make_gloo_exchange(const BackendInput& input) {
  try {
    auto options = c10d::ProcessGroupGloo::Options::create(input.timeout);
    options->devices.push_back(make_device(input.world));
    options->threads = 1;
    return make_message_exchange(
        c10::make_intrusive<c10d::ProcessGroupGloo>(input.store, input.world.rank, input.world.size, options));
  } catch (const std::exception& error) {
    const std::string text = error.what();
    throw Error(ErrorKind::kPeer, {"gloo could not connect the ranks: " + text.substr(0, text.find('\n')),
                                   "rank " + std::to_string(input.world.rank),
                                   "set GLOO_SOCKET_IFNAME to the network interface that the hosts share"});
  }
}

}  // namespace tessera::comm
