#include "tessera/comm/communication_facts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>

#include <array>
#include <memory>

#include "tessera/base/env.h"
#include "tessera/base/error.h"
#include "tessera/comm/backends.h"
#include "tessera/comm/mpi/library.h"
#include "tessera/comm/nccl/library.h"
#include "tessera/comm/own_address.h"
#include "tessera/comm/rendezvous.h"
#include "tessera/comm/shm/segment.h"

namespace tessera::comm {
namespace {

constexpr const char* kHost = "host";
constexpr const char* kRanks = "ranks";
constexpr const char* kBackends = "communication backends";
constexpr const char* kUsable = "usable";

struct Interface {
  std::string name;     // "eth0"
  std::string address;  // numeric
};

std::vector<Interface> interfaces() {
  ifaddrs* found = nullptr;
  if (getifaddrs(&found) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> addresses(found, &freeifaddrs);
  std::vector<Interface> result;
  for (const ifaddrs* each = found; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || (each->ifa_flags & IFF_UP) == 0) continue;
    const int family = each->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const socklen_t length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::array<char, NI_MAXHOST> text{};
    if (getnameinfo(each->ifa_addr, length, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) != 0) continue;
    result.push_back({each->ifa_name, text.data()});
  }
  return result;
}

std::vector<Fact> host_name_facts() {
  const std::string name = host_name();
  const auto route = route_to(name);
  std::vector<std::string> shown, others;
  for (const auto& [interface, address] : interfaces()) {
    shown.push_back(fmt::format("{} {}", interface, address));
    const bool is_link_local = address.starts_with("fe80:");  // means nothing without the interface
    if (!is_loopback(address) && !is_link_local) others.push_back(address);
  }
  return {{.topic = kHost, .name = "name", .value = name},
          host_address_fact(route ? route->far : "", others),
          {.topic = kHost, .name = "interfaces", .value = fmt::format("{}", fmt::join(shown, ", "))}};
}

std::vector<Fact> rank_facts() {
  std::vector<Fact> facts;
  const std::string launcher = launcher_of_environment();
  Fact place{.topic = kRanks, .name = "this process", .value = "alone: no launcher's variables in the environment"};
  if (!launcher.empty()) {
    try {
      const World world = world_from_environment();
      place.value = fmt::format("rank {} of {}, by the variables of {}", world.rank, world.size, launcher);
      if (world.size > 1 && !world.master_addr.empty()) {
        place.value += fmt::format("; ranks meet at {}:{}", world.master_addr, world.master_port);
      }
    } catch (const Error& error) {
      place.value = fmt::format("a rank, by the variables of {}", launcher);
      place.warning = fmt::format("{}: {}", error.report().what, error.report().fix);
    }
  }
  facts.push_back(place);
  if (const auto job = env_text("SLURM_JOB_ID")) {
    Fact slurm{
        .topic = kRanks,
        .name = "Slurm job",
        .value = fmt::format("{} on {}", *job, env_text("SLURM_JOB_NODELIST").value_or("hosts that it does not name"))};
    if (launcher.empty()) slurm.warning = "this process is in the job but no task of it: start ranks with srun";
    facts.push_back(slurm);
  }
  return facts;
}

// Each empty where it works.
struct Obstacles {
  std::string shm;
  std::string mpi;
};

Obstacles obstacles() {
  Obstacles result;
  try {
    constexpr size_t kSome = size_t{2} << 20;
    if (!shm::Segment::create(kSome).reserve(0, kSome)) result.shm = "there is no room in shared memory";
  } catch (const Error& error) {
    result.shm = error.report().what;
  }
  const std::vector<std::string> plugins = mpi::plugins_here();
  try {
    const std::string name = mpi::name_of_launcher();
    if (!mpi::has_plugin_of_launcher()) result.mpi = fmt::format("there is no plugin for {} here", name);
  } catch (const Error&) {
    result.mpi = "this process was not started by mpirun";
  }
  if (plugins.empty()) result.mpi = "no plugin was built, or its MPI is not installed here";
  return result;
}

std::string state_of(const std::string& backend, const Obstacles& found) {
  const bool uses_shm = backend.starts_with("shm");
  const bool uses_mpi = backend.ends_with("mpi");
  if (uses_shm && !found.shm.empty()) return "no: " + found.shm;
  if (uses_mpi && !found.mpi.empty()) return "no: " + found.mpi;
  return kUsable;
}

// Loads it, as a rank whose tensors are on a device would.
Fact nccl_fact() {
  Fact fact{.topic = kBackends, .name = "nccl", .value = "no: TESSERA_NCCL_LIBRARY names no library"};
  if (!nccl::library_name()) return fact;
  try {
    fact.value = fmt::format("{}, for tensors on devices", nccl::library_of_this_process().name);
  } catch (const Error& error) {
    fact.value = fmt::format("no: {}; tensors on devices go through host memory", error.report().what);
  }
  return fact;
}

std::vector<Fact> backend_facts() {
  const Obstacles found = obstacles();
  const std::string wanted = env_text("TESSERA_BACKEND").value_or("auto");
  Fact chosen{.topic = kBackends, .name = "TESSERA_BACKEND", .value = wanted};
  if (wanted == "auto") {
    chosen.value = found.shm.empty() ? "auto: shm within a host, gloo between hosts" : "auto: gloo";
    if (!found.shm.empty()) chosen.warning = found.shm + "; ranks of this host talk over gloo, which is slower";
  } else if (backends().lookup(wanted) == nullptr) {
    chosen.warning = fmt::format("there is no such backend; known: {}", fmt::join(backends().names(), ", "));
  } else if (state_of(wanted, found) != kUsable) {
    chosen.warning = fmt::format("it does not work here: {}", state_of(wanted, found).substr(4));
  }
  std::vector<Fact> facts = {chosen};
  for (const auto& entry : backends().entries()) {
    facts.push_back({.topic = kBackends, .name = entry.name, .value = state_of(entry.name, found)});
  }
  const std::vector<std::string> plugins = mpi::plugins_here();
  facts.push_back({.topic = kBackends,
                   .name = "plugins for MPI",
                   .value = plugins.empty() ? "none" : fmt::format("{}", fmt::join(plugins, ", "))});
  facts.push_back(nccl_fact());
  return facts;
}

}  // namespace

std::vector<Fact> communication_facts() { return joined({host_name_facts(), rank_facts(), backend_facts()}); }

Fact host_address_fact(const std::string& address, const std::vector<std::string>& others) {
  Fact fact{.topic = kHost, .name = "address of its name", .value = address};
  if (address.empty()) {
    fact.value = "none";
    fact.warning =
        "the host's own name does not resolve: add it to /etc/hosts, or give ranks MASTER_ADDR as an address";
  } else if (is_loopback(address) && !others.empty()) {
    fact.warning = fmt::format(
        "here the name means the loopback (Debian writes such a line to /etc/hosts): a MASTER_ADDR made of it, and "
        "programs that tell others their address by it, reach nobody on another host; use {}",
        others.front());
  }
  return fact;
}

}  // namespace tessera::comm
