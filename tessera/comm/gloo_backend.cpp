// gloo as LibTorch carries it. This is the one file that sees gloo's own headers: the wheel lacks them, Debian's
// libgloo-dev has them, and only pointers to their types pass through, so nothing of that package is linked.
#include <fmt/format.h>

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "tessera/base/abandonable_thread.h"
#include "tessera/base/env.h"
#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/log.h"
#include "tessera/base/pipe_signal.h"
#include "tessera/comm/backends.h"
#include "tessera/comm/message_exchange.h"
#include "tessera/comm/own_address.h"
#include "tessera/comm/store/store_texts.h"

namespace tessera::comm {
namespace {

using c10d::ProcessGroupGloo;

constexpr const char* kLoopback = "127.0.0.1";
constexpr const char* kSetInterface = "set GLOO_SOCKET_IFNAME to the network interface that the hosts share";
constexpr const char* kOpenPorts =
    "set GLOO_SOCKET_IFNAME to the network interface that the hosts share, and let hosts connect to each other's ports "
    "above 1023: a firewall that lets only MASTER_PORT through stops them here";

// How much longer than its time gloo may take to connect, before it is taken for one that never ends.
constexpr std::chrono::milliseconds kMoment{5'000};

std::vector<Route> routes_of_ranks(const BackendInput& input, const Route& own) {
  const World& world = input.world;
  const StartStep step{"routes", "did not tell its address", fmt::format("rank {}", world.rank)};
  std::vector<Route> routes;
  for (const std::string& text : exchange_texts_at_start(*input.store, step, world.rank, world.size,
                                                         fmt::format("{} {}", own.own, own.far), input.timeout)) {
    const size_t blank = text.find(' ');
    routes.push_back({text.substr(0, blank), text.substr(blank + 1)});
  }
  return routes;
}

// The address that peers will connect to. Collective.
std::shared_ptr<::gloo::transport::Device> make_device(const BackendInput& input) {
  const World& world = input.world;
  const bool one_host = is_loopback(world.master_addr) || world.master_addr == "localhost";
  const Route own = one_host || world.master_addr.empty() ? Route{} : route_to(world.master_addr).value_or(Route{});
  const auto all = one_host || world.master_addr.empty() ? std::vector<Route>{} : routes_of_ranks(input, own);
  if (const auto interface = env_text("GLOO_SOCKET_IFNAME")) {
    return ProcessGroupGloo::createDeviceForInterface(*interface);
  }
  if (world.master_addr.empty()) return ProcessGroupGloo::createDefaultDevice();
  if (one_host) return ProcessGroupGloo::createDeviceForHostname(kLoopback);
  if (own.own.empty()) {
    throw Error(ErrorKind::kMachine, {fmt::format("no network interface leads to rank 0's host, {}", world.master_addr),
                                      fmt::format("rank {}", world.rank), kSetInterface});
  }
  const std::string address = own_address(own, all).value_or(kLoopback);
  log_debug("gloo listens on {}", address);
  return ProcessGroupGloo::createDeviceForHostname(address);
}

[[noreturn]] void fail_to_connect(const World& world, const std::string& reason) {
  throw Error(ErrorKind::kPeer,
              {"gloo could not connect the ranks: " + reason, fmt::format("rank {}", world.rank), kOpenPorts});
}

}  // namespace

std::unique_ptr<Exchange> make_gloo_exchange(const BackendInput& input) {
  const auto group = std::make_shared<c10::intrusive_ptr<ProcessGroupGloo>>();
  const PipeSignalBlocked blocked;  // for gloo's threads, which start here
  AbandonableThread thread;
  bool connected = false;
  try {
    auto options = ProcessGroupGloo::Options::create(input.timeout);
    options->devices.push_back(make_device(input));
    options->threads = 1;
    // Each of gloo's connections has the whole time to itself, and they are made one after the other.
    connected = thread.run(
        [=, store = input.store, rank = input.world.rank, size = input.world.size] {
          *group = c10::make_intrusive<ProcessGroupGloo>(store, rank, size, options);
        },
        input.timeout + kMoment);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    const std::string text = error.what();
    const bool is_gone = text.find("by peer") != std::string::npos;  // closed, or reset
    fail_to_connect(input.world, is_gone ? "one of them ended meanwhile" : text.substr(0, text.find('\n')));
  }
  if (!connected) fail_to_connect(input.world, "not every rank answered within " + format_duration(input.timeout));
  return make_message_exchange(std::move(*group));
}

}  // namespace tessera::comm
