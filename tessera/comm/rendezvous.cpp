#include "tessera/comm/rendezvous.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netinet/in.h>
#include <strings.h>
#include <sys/socket.h>

#include <algorithm>
#include <optional>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "tessera/base/abandonable_thread.h"
#include "tessera/base/env.h"
#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/log.h"
#include "tessera/comm/await_listener.h"
#include "tessera/comm/backends.h"
#include "tessera/comm/bounded_store.h"
#include "tessera/comm/connection.h"
#include "tessera/comm/group.h"
#include "tessera/comm/mpi/library.h"
#include "tessera/comm/mpi/meeting.h"
#include "tessera/comm/own_address.h"
#include "tessera/comm/staged_exchange.h"
#include "tessera/comm/store_listener.h"

namespace tessera::comm {
namespace {

using std::chrono::milliseconds;

// How one launcher says who a process is, and how many there are on this host.
struct RankVariables {
  const char* launcher;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
  bool is_mpirun;
};

constexpr RankVariables kRankVariables[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", false},
    {"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE", false},
    {"OpenMPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", true},
    {"MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", true},
};

// The first host of Slurm's list in its short form: "gpu[03-05,9],login1" begins with "gpu03".
std::string first_slurm_host(const std::string& list) {
  const size_t end = list.find_first_of("[,");
  std::string host = list.substr(0, end);
  if (end != std::string::npos && list[end] == '[') {
    const size_t stop = list.find_first_of(",-]", end + 1);
    host += list.substr(end + 1, stop - end - 1);
  }
  return host;
}

std::string backend_of(const InitOptions& options) {
  return options.backend.empty() ? env_text("TESSERA_BACKEND").value_or("auto") : options.backend;
}

bool connects_by_mpi(const InitOptions& options) { return strcasecmp(backend_of(options).c_str(), "mpi") == 0; }

// Empty: to be found out through MPI.
std::string master_addr_of(const RankVariables& names, int size, const InitOptions& options) {
  if (const auto addr = env_text("MASTER_ADDR")) return *addr;
  const std::string launcher = names.launcher;
  if (launcher == "Slurm") {
    if (const auto hosts = env_text("SLURM_JOB_NODELIST")) return first_slurm_host(*hosts);
  }
  if (connects_by_mpi(options)) return "";
  if (names.is_mpirun) {
    if (mpi::has_plugin_of_launcher()) return "";
    if (env_int(names.local_size) == size) return "127.0.0.1";
    throw Error(
        ErrorKind::kUsage,
        {fmt::format("MASTER_ADDR is not set, and Tessera's plugin for {}, through which rank 0 would tell where "
                     "it is, cannot be loaded",
                     launcher),
         "ranks of mpirun on several hosts",
         "give mpirun MASTER_ADDR=<host of rank 0> for every rank, or build Tessera where mpicc is on PATH"});
  }
  throw Error(ErrorKind::kUsage,
              {"MASTER_ADDR is not set, so the ranks cannot find each other", "the environment set by " + launcher,
               "export MASTER_ADDR=<host of rank 0>, or start the ranks with mpirun, which needs no address"});
}

milliseconds timeout_of(const InitOptions& options) {
  if (options.timeout.count() > 0) return options.timeout;
  const int64_t seconds = env_int("TESSERA_TIMEOUT").value_or(600);
  if (seconds < 1) {
    throw Error(ErrorKind::kUsage,
                {fmt::format("TESSERA_TIMEOUT is {}", seconds), "the environment", "use at least 1 second"});
  }
  return std::chrono::seconds(seconds);
}

// For how long rank 0 may be late before c10d's own way of trying again, with its longer pauses, is as good.
constexpr milliseconds kRank0IsLate{10'000};

// How much longer than its time LibTorch's client may take, before it is taken for one that never returns.
constexpr milliseconds kMoment{5'000};

// Null: something at the address accepts connections and does not speak, for which the client would wait for ever.
c10::intrusive_ptr<c10d::TCPStore> make_store(const std::string& host, const c10d::TCPStoreOptions& options) {
  const auto store = std::make_shared<c10::intrusive_ptr<c10d::TCPStore>>();
  AbandonableThread thread;
  const bool made =
      thread.run([=] { *store = c10::make_intrusive<c10d::TCPStore>(host, options); }, options.timeout + kMoment);
  return made ? std::move(*store) : nullptr;
}

bool all_ranks_are_here(const World& world) {
  return is_loopback(world.master_addr) || world.master_addr == "localhost" ||
         env_int("LOCAL_WORLD_SIZE").value_or(0) == world.size;
}

uint16_t port_of(const UniqueFd& socket) {
  sockaddr_storage address = {};
  socklen_t length = sizeof(address);
  if (getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) return 0;
  const bool v4 = address.ss_family == AF_INET;
  return ntohs(v4 ? reinterpret_cast<const sockaddr_in&>(address).sin_port
                  : reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
}

c10::intrusive_ptr<c10d::TCPStore> open_store(const World& world, milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(world.master_port);
  options.isServer = world.rank == 0 && !world.store_is_running;
  options.numWorkers = world.size;
  options.waitWorkers = false;
  options.timeout = timeout;
  const std::string place = fmt::format("{}:{}", world.master_addr, world.master_port);
  std::optional<UniqueFd> listener;
  if (options.isServer) listener = listen_for_ranks(world.master_addr, world.master_port, all_ranks_are_here(world));
  if (listener) {
    options.masterListenFd = fcntl(listener->get(), F_DUPFD_CLOEXEC, 0);  // the store's to close
    options.port = port_of(*listener);
  }
  if (!options.isServer) await_listener(world.master_addr, world.master_port, std::min(timeout / 10, kRank0IsLate));
  c10::intrusive_ptr<c10d::TCPStore> store;
  try {
    store = make_store(world.master_addr, options);
  } catch (const std::exception& error) {
    const std::string text = error.what();
    const bool taken = text.find("EADDRINUSE") != std::string::npos || text.find("in use") != std::string::npos;
    if (options.isServer && taken) {
      throw Error(ErrorKind::kMachine, {fmt::format("port {} is already in use", world.master_port), place,
                                        "choose another MASTER_PORT (tessera launch picks a free one by itself)"});
    }
    throw Error(ErrorKind::kPeer, {fmt::format("rank {} could not reach rank 0's rendezvous: {}", world.rank,
                                               text.substr(0, text.find('\n'))),
                                   place, "check that rank 0 is running, and check MASTER_ADDR and MASTER_PORT"});
  }
  if (!store) {
    throw Error(ErrorKind::kPeer,
                {fmt::format("rank {} was connected to rank 0's rendezvous, which did not answer within {}", world.rank,
                             format_duration(timeout)),
                 place, "check that rank 0 is not stopped, and that no other service has this port (MASTER_PORT)"});
  }
  return store;
}

// Nobody said where rank 0 is, but MPI connects the ranks already.
c10::intrusive_ptr<c10d::TCPStore> open_store_through_mpi(World& world, milliseconds timeout) {
  mpi::Meeting meeting(world, timeout);
  const bool one_host = meeting.is_one_host();
  c10::intrusive_ptr<c10d::TCPStore> store;
  if (world.rank == 0) {
    world.master_addr = one_host ? "127.0.0.1" : host_name();
    world.master_port = 0;  // any that is free
    store = open_store(world, timeout);
    world.master_port = store->getPort();
  }
  const std::string place = meeting.text_of_rank_0(fmt::format("{}:{}", world.master_addr, world.master_port));
  if (store) return store;
  const size_t colon = place.rfind(':');
  world.master_addr = place.substr(0, colon);
  world.master_port = std::stoi(place.substr(colon + 1));
  return open_store(world, timeout);
}

std::string joined_key(int rank) { return fmt::format("joined/{}", rank); }

void wait_for_everybody(c10d::Store& store, const World& world, milliseconds timeout) {
  store.set(joined_key(world.rank), "1");
  std::vector<std::string> keys;
  for (int rank = 0; rank < world.size; ++rank) keys.push_back(joined_key(rank));
  try {
    store.wait(keys, timeout);
  } catch (const Error&) {
    throw;
  } catch (const std::exception&) {
    std::vector<int> missing;
    for (int rank = 0; rank < world.size; ++rank) {
      if (!store.check({joined_key(rank)})) missing.push_back(rank);
    }
    throw Error(ErrorKind::kPeer,
                {fmt::format("rank {} did not join the run within {} s", fmt::join(missing, ", rank "),
                             std::chrono::duration_cast<std::chrono::seconds>(timeout).count()),
                 fmt::format("{}:{}, a run of {} ranks", world.master_addr, world.master_port, world.size),
                 "look at that rank's output, and check that WORLD_SIZE is the number of processes started"});
  }
}

World read_world(const InitOptions& options) {
  for (const RankVariables& names : kRankVariables) {
    const auto rank = env_int(names.rank);
    const auto size = env_int(names.size);
    if (!rank && !size) continue;
    if (!rank || !size) {
      throw Error(ErrorKind::kUsage, {fmt::format("{} is set but {} is not", rank ? names.rank : names.size,
                                                  rank ? names.size : names.rank),
                                      "the environment", "set both, or neither for a single-process run"});
    }
    if (*size < 1 || *rank < 0 || *rank >= *size) {
      throw Error(ErrorKind::kUsage,
                  {fmt::format("{}={} is out of range for {}={}", names.rank, *rank, names.size, *size),
                   "the environment", "ranks are numbered from 0 to world size - 1"});
    }
    World world{.rank = static_cast<int>(*rank),
                .local_rank = static_cast<int>(env_int(names.local_rank).value_or(*rank)),
                .size = static_cast<int>(*size)};
    if (world.size == 1) return world;
    world.master_addr = master_addr_of(names, world.size, options);
    world.master_port = static_cast<int>(env_int("MASTER_PORT").value_or(29500));
    if (world.master_port < 1 || world.master_port > 65535) {
      throw Error(ErrorKind::kUsage, {fmt::format("MASTER_PORT is {}", world.master_port), "the environment",
                                      "use a port from 1 to 65535"});
    }
    world.store_is_running = env_text("TORCHELASTIC_USE_AGENT_STORE") == "True";
    return world;
  }
  return {};
}

}  // namespace

World world_from_environment() { return read_world({}); }

void let_rank_0_fail_first() {
  constexpr std::chrono::seconds kMpirunNotices{2};
  const auto rank = env_text("OMPI_COMM_WORLD_RANK");
  if (rank && *rank != "0") std::this_thread::sleep_for(kMpirunNotices);
}

std::shared_ptr<Group> init_distributed(const InitOptions& options) {
  return init_distributed(read_world(options), options);
}

std::shared_ptr<Group> init_distributed(const World& world, const InitOptions& options) {
  set_log_rank(world.rank, world.size);
  if (world.size == 1) return Group::alone();
  World met = world;
  const milliseconds timeout = timeout_of(options);
  const auto store = met.master_addr.empty() ? open_store_through_mpi(met, timeout) : open_store(met, timeout);
  return connect(met, store, "tessera", options);
}

std::shared_ptr<Group> connect(const World& world, c10::intrusive_ptr<c10d::Store> shared, const std::string& name,
                               const InitOptions& options) {
  if (world.size == 1) return Group::alone();
  const milliseconds timeout = timeout_of(options);
  const std::string place =
      world.master_port > 0 ? fmt::format("{}:{}", world.master_addr, world.master_port) : kStoreOfTorch;
  auto bounded = c10::make_intrusive<BoundedStore>(std::move(shared), place, timeout);
  const auto store = c10::make_intrusive<c10d::PrefixStore>(name, std::move(bounded));
  wait_for_everybody(*store, world, timeout);
  std::shared_ptr<Exchange> exchange =
      make_staged_exchange(make_exchange(backend_of(options), {store, world, timeout}), world.rank);
  log_debug("joined a world of {} as '{}'", world.size, name);
  std::shared_ptr<Group::Connection> connection(new Group::Connection{store, timeout, WaitBoard(store, world.rank)});
  return std::make_shared<Group>(world, std::move(connection), std::move(exchange));
}

}  // namespace tessera::comm
